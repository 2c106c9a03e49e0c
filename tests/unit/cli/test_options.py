"""Options made from fields; help; what a command line imports."""

import json
import subprocess
import sys

import pytest
from deepinfer_core import cli
from deepinfer_core.cli.options import SAMPLING_NAMES, read_engine, read_sampling
from deepinfer_core.config import FIELD_SECTIONS, SECTIONS
from deepinfer_core.errors import ConfigError
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.spec import StructuredOutput


def help_of(capsys, *words, columns=200):
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


GROUPS = {
    "config": ["explain"],
    "kernels": ["explain"],
    "bench": ["latency", "throughput", "all"],
}
LEAVES = [
    words
    for name in cli.COMMANDS
    for words in ([f"{name} {leaf}" for leaf in GROUPS[name]] if name in GROUPS else [name])
]


@pytest.mark.parametrize("command", LEAVES)
def test_every_command_has_help_with_examples_and_json(capsys, command):
    text = help_of(capsys, *command.split())
    assert "Examples:" in text
    assert "--json" in text


@pytest.mark.parametrize("group", GROUPS)
def test_groups_list_their_commands(capsys, group):
    text = help_of(capsys, group)
    assert all(leaf in text for leaf in GROUPS[group])


def test_every_field_is_an_option(capsys):
    text = help_of(capsys, "generate")
    assert {*SamplingParams.model_fields} - {*SAMPLING_NAMES} == {"structured"}
    for name in (*FIELD_SECTIONS, *SAMPLING_NAMES):
        assert f"--{name.replace('_', '-')}"[:24] in text, name


@pytest.fixture
def explain(capsys, monkeypatch):
    def explain(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["config", "explain", *words, "--json"])
        assert not ended.value.code
        return {row["path"]: row for row in json.loads(capsys.readouterr().out)}

    return explain


def test_explain_shows_every_field_with_value_source_and_doc(explain, tmp_path, monkeypatch):
    file = tmp_path / "engine.toml"
    file.write_text('dtype = "float32"\n[scheduler]\npolicy = "priority"\nmax_num_seqs = 3\n')
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "5")
    words = ["-m", "x", "--config", str(file), "--set", "cache.block_size=32", "--no-overlap"]
    rows = explain(*words, "--kernels", "gemm.*=a,b", "--block", "p1", "--block", "p2")
    assert set(rows) == {
        f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.model_fields
    }
    assert all(row["doc"] for row in rows.values())
    shown = {path: (row["value"], row["source"].split()[0]) for path, row in rows.items()}
    assert shown["model.model"] == ("x", "flag")
    assert shown["model.dtype"] == ("float32", "file")
    assert shown["scheduler.policy"] == ("priority", "file")
    assert shown["scheduler.max_num_seqs"] == (5, "environment")
    assert shown["cache.block_size"] == (32, "flag")
    assert shown["scheduler.overlap"] == (False, "flag")
    assert shown["device.kernels"] == ({"gemm.*": ["a", "b"]}, "flag")
    assert shown["plugin.block"] == (["p1", "p2"], "flag")
    assert shown["cache.memory_fraction"][1] == "default"


def test_explain_needs_no_model(explain, capsys):
    assert explain()["model.model"]["source"] == "nowhere"
    with pytest.raises(SystemExit):
        cli.main(["config", "explain"])
    assert "max_num_seqs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("cache.block_size=32", "block_size", 32),
        ("max_num_seqs = 7", "max_num_seqs", 7),
        ("device.batch_invariant=true", "batch_invariant", True),
        ("plugin.block=a,b", "block", ("a", "b")),
        ('device.kernels={"norm.rms": "x.y"}', "kernels", {"norm.rms": "x.y"}),
        ("model.max_model_len=null", "max_model_len", None),
    ],
)
def test_any_field_by_its_path(setting, field, value):
    config = read_engine({"model": "m"}, None, [setting]).config
    assert getattr(getattr(config, FIELD_SECTIONS[field]), field) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["block_size"], "not a setting"),
        (["nope.block_size=1"], "not a setting"),
        (["cache.dtype=float32"], "unknown field dtype"),
        (["cache.block_sise=1"], "did you mean block_size"),
        (["cache.block_size=many"], "does not parse"),
        (["cache.block_size=0"], "block_size"),
        (["block_size=1", "cache.block_size=2"], "given twice"),
    ],
)
def test_settings_that_are_none(settings, message):
    with pytest.raises(ConfigError, match=message):
        read_engine({"model": "m"}, None, settings)


def test_sampling_values_are_taken_as_given():
    given = read_sampling(
        {"temperature": 0.0, "top_k": None, "stop": [], "logit_bias": ["5=-1.5"], "max_tokens": 0}
    )
    assert given == {"temperature": 0.0, "logit_bias": {"5": -1.5}, "max_tokens": None}
    assert SamplingParams(**given).logit_bias == {5: -1.5}


def test_a_form_of_the_answer_is_an_option_of_its_own(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    given = read_sampling({"json_schema": f"@{schema}", "regex": None, "choice": []})
    assert SamplingParams(**given).structured == StructuredOutput(json_schema={"type": "integer"})
    given = read_sampling({"choice": ["a", "b"], "json_object": None})
    assert SamplingParams(**given).structured == StructuredOutput(choice=["a", "b"])
    assert read_sampling({"json_object": False}) == {}
    with pytest.raises(ConfigError, match=r"cannot be read.*--grammar|--grammar.*cannot be read"):
        read_sampling({"grammar": f"@{tmp_path / 'none'}"})


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["config", "explain"]])
def test_help_does_not_wait_for_torch(words):
    code = f"""
import sys
from deepinfer_core.cli import main
try:
    main({words!r})
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.split()[-1] == "False"
    assert done.stdout
