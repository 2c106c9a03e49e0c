"""`verify` finds every feature equal to the plain run, and finds a planted difference."""

import json

import pytest
from deepinfer_core.cli import main
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.row_state import RowState
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.testing.tiny_v41 import FOUR_LAYERS, TINY_VISION
from deepinfer_core.verify.cases import Point
from deepinfer_core.verify.report import verify_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    def path_of(family):
        path = tmp_path_factory.getbasetemp() / f"verify-{family}"
        return path if path.exists() else write_tiny_checkpoint(path, family)

    return path_of


def verify(path, *, batch_invariant=True, dtype="float32", max_tokens=8, **options):
    config = EngineConfig.from_flat(str(path), dtype=dtype, batch_invariant=batch_invariant)
    host = PluginHost(load_entry_points=False)
    return verify_model(config, host=host, max_tokens=max_tokens, **options)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_random_combinations_equal_the_plain_run_bit_by_bit(tiny, family):
    report = verify(tiny(family), num_points=4, seed=len(family))
    assert report.passed, "\n".join(map(report.reproduction, report.results))
    compared = sum(result.num_equal for result in report.results)
    assert compared >= 4 * report.num_cases
    assert sum(result.num_hit_tokens for result in report.results) > 0


def test_images_are_part_of_it(tmp_path, monkeypatch):
    path = write_tiny_checkpoint(tmp_path, "deepseek_v41", vision_config=TINY_VISION, **FOUR_LAYERS)
    report = verify(path, num_points=1, seed=36, max_tokens=4)
    assert report.num_cases == 8 + 3
    assert report.passed, "\n".join(map(report.reproduction, report.results))
    # A cache that mistakes one image for another is found.
    monkeypatch.setattr("deepinfer_core.request.content_of", lambda *_: b"")
    report = verify(path, num_points=1, seed=36, max_tokens=4)
    assert {d.case for result in report.results for d in result.differences} <= {8, 9, 10}
    assert not report.passed


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v4"])
def test_bfloat16_is_equal_too(tiny, family):
    assert verify(tiny(family), num_points=2, dtype="bfloat16").passed


def test_without_invariant_kernels_only_close_decisions_may_differ(tiny):
    report = verify(tiny("llama"), num_points=3, batch_invariant=False)
    assert report.passed
    assert report.bound == 1e-3
    close = [d for result in report.results for d in result.differences]
    assert all(difference.gap <= report.bound for difference in close)


def test_noise_that_depends_on_the_row_is_found(tiny, monkeypatch):
    """The kind of bug that `verify` is for: a seed that depends on the slot."""
    start_row = RowState.start_row

    def start_row_with_slot(self, start):
        object.__setattr__(start, "seed", start.seed + start.row)
        start_row(self, start)

    monkeypatch.setattr(RowState, "start_row", start_row_with_slot)
    report = verify(tiny("llama"), num_points=3)
    assert not report.passed
    first = next(d for result in report.results for d in result.differences)
    assert first.what in ("token", "logprob")


def test_a_stale_token_under_overlap_is_found(tiny, monkeypatch):
    read = TokenPool.read
    monkeypatch.setattr(
        TokenPool, "read", lambda self, places: read(self, (places - 1).clamp(min=0))
    )
    report = verify(tiny("llama"), num_points=6)
    failed = [result for result in report.results if not result.passed]
    assert failed
    assert all(result.point.overlap for result in failed)


def test_a_cache_that_never_hits_is_a_failure(tiny, monkeypatch):
    """N8: a cold-against-warm check passed without one hit."""
    monkeypatch.setattr("deepinfer_core.kv.manager.KVManager.match_prefix", lambda *_: 0)
    report = verify(tiny("llama"), num_points=4)
    cached = [result for result in report.results if result.point.prefix_cache]
    assert cached
    assert all(result.problems and not result.passed for result in cached)


def test_the_command_prints_json_and_exits_by_the_verdict(tiny, capsys, monkeypatch):
    words = ["verify", str(tiny("llama")), "--points", "1", "--max-tokens", "4", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    answer = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert answer["passed"]
    monkeypatch.setattr("deepinfer_core.kv.manager.KVManager.match_prefix", lambda *_: 0)
    failing = next(i for i in range(50) if _uses_cache(i))
    with pytest.raises(SystemExit) as ended:
        main([*words, "--first", str(failing)])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert ended.value.code == 1
    assert f"--points 1 --first {failing}" in point["reproduction"]


def _uses_cache(index):
    return Point.random(0, index, 150).prefix_cache


def test_no_points_is_an_error(tiny):
    with pytest.raises(ConfigError, match="points"):
        verify(tiny("llama"), num_points=0)


def test_what_is_approximate_is_not_verified(tiny):
    config = EngineConfig.from_flat(str(tiny("deepseek_v41")), bounded_replay=True)
    with pytest.raises(ConfigError) as caught:
        verify_model(config, host=PluginHost(load_entry_points=False), num_points=1)
    assert caught.value.field == "cache.bounded_replay"
