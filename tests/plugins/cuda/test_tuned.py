"""Tables amend launches of the shapes that they have, on the device that they are of."""

import tomllib
from dataclasses import dataclass, fields, replace

import pytest
from deepinfer_cuda import heuristics_attention, tuned
from deepinfer_cuda.tuned import DIRECTORY, forced, read, use_device

TABLE = """
device = "Some GPU"
date = "2026-12-01"

[[launch]]
kernel = "launch_of"
shape = { rows = 8, width = 64 }
use = { num_warps = 2 }

[[launch]]
kernel = "launch_of"
shape = { rows = 32, width = 64 }
use = { num_warps = 8, num_stages = 5 }
"""


@dataclass(frozen=True)
class Launch:
    num_warps: int
    num_stages: int


@tuned.tuned(grows="rows")
def launch_of(rows, width):
    return None if rows == 0 else Launch(4, 3)


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "some-gpu.toml").write_text(TABLE)
    yield tmp_path
    use_device("no device")


def test_without_a_table_the_function_stands(tables):
    assert launch_of(8, 64) == Launch(4, 3)
    use_device("Another GPU", tables)
    assert launch_of(8, 64) == Launch(4, 3)


@pytest.mark.parametrize(
    ("rows", "width", "launch"),
    [
        (8, 64, Launch(2, 3)),
        (3, 64, Launch(2, 3)),
        (9, 64, Launch(8, 5)),
        (32, 64, Launch(8, 5)),
        (33, 64, Launch(4, 3)),
        (8, 65, Launch(4, 3)),
    ],
    ids=["measured", "below", "between", "the largest", "beyond", "another width"],
)
def test_the_next_larger_measured_shape_serves(tables, rows, width, launch):
    use_device("Some GPU", tables)
    assert launch_of(rows, width) == launch
    assert launch_of(rows, width=width) == launch


def test_a_kernel_that_refuses_a_shape_goes_on_refusing(tables):
    use_device("Some GPU", tables)
    assert launch_of(0, 64) is None


def test_forced_fields_win_while_they_are_tried(tables):
    use_device("Some GPU", tables)
    assert launch_of(8, 64) == Launch(2, 3)
    with forced("launch_of", {"num_stages": 7}):
        assert launch_of(8, 64) == Launch(4, 7)
    assert launch_of(8, 64) == Launch(2, 3)


def test_tables_that_are_shipped_fit_their_functions():
    """Every entry names arguments of its function and fields of what it gives."""
    for path in DIRECTORY.glob("*.toml"):
        table = tomllib.loads(path.read_text())
        assert {"device", "date", "commit", "command"} <= table.keys()
        for entry in read(path, table["device"]):
            launch = getattr(heuristics_attention, entry.kernel)(**entry.shape)
            assert set(entry.use) <= {field.name for field in fields(launch)}


@pytest.fixture
def tune():
    pytest.importorskip("triton")
    from deepinfer_cuda import tune

    return tune


def test_the_quickest_right_candidate_wins(tune, tables):
    import torch

    def run():
        launch = launch_of(8, 64)
        return torch.full((4,), 0.0 if launch.num_warps == 1 else 1.0)

    def measure(run):
        run()
        return {1: 1.0, 2: 5.0, 4: 6.0, 8: 9.0}[launch_of(8, 64).num_warps]

    candidates = [{"num_warps": n} for n in (1, 2, 8)]
    trial = tune.Trial("launch_of", {"rows": 8, "width": 64}, candidates, run)
    best = tune.search(trial, measure)
    assert (best.use, best.microseconds, best.standing_microseconds) == ({"num_warps": 2}, 5.0, 6.0)
    trial = tune.Trial("launch_of", {"rows": 8, "width": 64}, [{"num_warps": 8}], run)
    assert tune.search(trial, measure).use == {}


def test_what_is_written_is_read_again(tune, tmp_path):
    results = [
        tune.Best("launch_of", {"rows": 8, "width": 64}, {"num_warps": 2}, 5.0, 6.0),
        tune.Best("launch_of", {"rows": 9, "width": 64}, {}, 6.0, 6.0),
    ]
    path = tmp_path / "tuning" / "a.toml"  # where there is no folder yet, as after an installation
    tune.write_table(results, path, {"device": 'A "GPU"', "date": "2026-12-01"})
    (entry,) = read(path, 'A "GPU"')
    assert (entry.shape, entry.use) == ({"rows": 8, "width": 64}, {"num_warps": 2})
    assert read(path, "B") == []


@pytest.mark.parametrize("what", ["decode", "chunks"])
def test_trials_fit_the_functions_that_they_tune(tune, monkeypatch, what):
    """Shapes once had an argument that the function had lost, and lacked one that it had got."""
    monkeypatch.setattr(tune, "_shared_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(tune, "_attention", lambda *_: None)
    trials = [*tune.TRIALS[what](tune.parse([what]))]
    assert trials
    for trial in trials:
        launch = getattr(heuristics_attention, trial.kernel)(**trial.shape)
        assert trial.candidates and all(replace(launch, **use) for use in trial.candidates)


def test_options_have_a_meaning_of_their_own(tune):
    options = tune.parse(["decode", "--sizes", "1", "4", "--kv-heads", "4"])
    assert options.sizes == [1, 4]
    assert (options.what, options.kv_heads, options.dtype) == ("decode", 4, "bfloat16")
    with pytest.raises(SystemExit):
        tune.parse(["nothing"])
