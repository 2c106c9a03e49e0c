"""The protocol: what its tests are called, what they run, and what a result says."""

import json

import pytest
import typer
from deepinfer_core.bench import ceilings as ceilings_module
from deepinfer_core.bench import op_steps
from deepinfer_core.bench.op_steps import OpsOptions, measure_ops
from deepinfer_core.bench.open_engine import protocol_config
from deepinfer_core.bench.protocol import ProtocolTest, parse_tests, run_protocol
from deepinfer_core.cli import bench_cmd
from deepinfer_core.config import EngineConfig
from deepinfer_core.config_sources import resolve_config
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins import PluginHost
from typer.testing import CliRunner

DECODE = {"test", "batch", "inp", "out", "step_ms", "tok_s", "e2e_s", "prefill_s", "spread"}
TTFT = {"test", "batch", "inp", "ttft_ms", "best_ms", "tok_s"}
ROOFLINE = {"roof_ms", "mem_ms", "flop_ms", "gb", "of_roof"}


def core_alone():
    return PluginHost(load_entry_points=False)


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings_module, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings_module, "LARGEST_SIDE", 512)
    monkeypatch.setattr(op_steps, "NUM_STEPS", 3)


@pytest.fixture
def config(model_dir):
    return EngineConfig.from_flat(
        str(model_dir), dtype="float32", num_blocks=100, max_num_seqs=8, prefix_caching=False
    )


def test_sets_are_tests_of_the_same_form():
    assert parse_tests("smoke") == [
        ProtocolTest("lat", 1, 128, 16),
        ProtocolTest("ttft", 1, 1024, 1),
    ]
    assert parse_tests("thr:4:9:3, lat:1:8:2") == [
        ProtocolTest("thr", 4, 9, 3),
        ProtocolTest("lat", 1, 8, 2),
    ]
    assert [test.kind for test in parse_tests("std")] == ["lat"] * 4 + ["ttft"] * 3 + ["thr"]


@pytest.mark.parametrize(
    "text", ["", "std,", "lat:1:8", "lat:1:8:1", "ttft:1:0", "thr:a:1:1", "x:1"]
)
def test_what_is_no_test_is_refused(text):
    with pytest.raises(ConfigError, match="not a test"):
        parse_tests(text)


def test_results_say_what_others_say(config):
    emitted = []
    report = run_protocol(config, parse_tests("lat:2:8:9,ttft:1:30,thr:3:8:5"), repeats=1,
                          host=core_alone(), emit=emitted.append)  # fmt: skip
    decode, ttft, throughput = emitted
    assert report["results"] == emitted
    assert set(decode) == DECODE | ROOFLINE | {"engine", "model"}
    assert (decode["batch"], decode["inp"], decode["out"]) == (2, 8, 9)
    assert decode["tok_s"] == pytest.approx(2 / decode["step_ms"] * 1e3)
    assert decode["of_roof"] == pytest.approx(decode["roof_ms"] / decode["step_ms"])
    assert decode["roof_ms"] == max(decode["mem_ms"], decode["flop_ms"])
    assert set(ttft) == TTFT | ROOFLINE | {"engine", "model"}
    assert ttft["flop_ms"] > decode["flop_ms"]
    assert throughput["out_tok_s"] == pytest.approx(15 / throughput["wall_s"])
    assert throughput["tot_tok_s"] == pytest.approx(39 / throughput["wall_s"])
    json.dumps(report)


def test_a_test_that_does_not_fit_does_not_end_the_others(config):
    report = run_protocol(config, parse_tests("ttft:1:9999,ttft:1:8"), repeats=1, host=core_alone())
    failed, passed = report["results"]
    assert "PromptTooLongError" in failed["error"]
    assert (failed["length"], passed["inp"]) == (9999, 8)


def test_random_weights_need_no_tokenizer(model_dir, tmp_path):
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    config = EngineConfig.from_flat(
        str(tmp_path), load_format="dummy", dtype="float32", num_blocks=100, max_num_seqs=8
    )
    report = run_protocol(config, parse_tests("ttft:1:8"), repeats=1, host=core_alone())
    assert report["results"][0]["ttft_ms"] > 0
    assert report["model"]["random_weights"] is True


def test_settings_that_were_given_win_over_those_of_the_protocol(model_dir):
    given = resolve_config(flags={"model": str(model_dir), "max_num_seqs": 8})
    config = protocol_config(given)
    assert config.scheduler.max_num_seqs == 8
    assert config.scheduler.max_num_batched_tokens == 16384
    assert not config.cache.prefix_caching


def test_steps_stand_beside_their_ops(config):
    options = OpsOptions(batches=(1, 3), context=9, prompts=(20,))
    report = measure_ops(config, options, host=core_alone())
    assert [s["label"] for s in report["steps"]] == [
        "decode, 1 x 9",
        "decode, 3 x 9",
        "prompt of 20",
    ]
    for step in report["steps"]:
        assert step["ops_ms"] == pytest.approx(sum(op["ms"] for op in step["ops"]))
        assert step["num_bytes"] == sum(op["num_bytes"] for op in step["ops"])
        assert step["floor_ms"] <= sum(op["floor_ms"] for op in step["ops"]) * 1.0001
        assert step["of_roofline"] == pytest.approx(step["floor_ms"] / step["step_ms"])
    json.dumps(report)


@pytest.fixture
def invoke():
    app = typer.Typer()
    bench_cmd.register(app)

    def invoke(*words):
        result = CliRunner().invoke(app, ["bench", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


SMALL = ("--dtype", "float32", "--num-blocks", "100", "--max-num-seqs", "8")


def test_ops_prints_a_table_for_each_step_and_writes_files(invoke, model_dir, tmp_path):
    result = invoke("ops", str(model_dir), "--batches", "1,2", "--context", "9", "--rows", "3",
                    "--output", str(tmp_path / "out"), *SMALL)  # fmt: skip
    assert result.exit_code == 0
    assert "decode, 1 x 9" in result.stdout
    assert "decode, 2 x 9" in result.stdout
    assert "more" in result.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["ops.json", "ops.png"]


def test_protocol_prints_result_lines(invoke, model_dir):
    result = invoke("protocol", str(model_dir), "--tests", "ttft:1:8", "--repeats", "1", *SMALL)
    (line,) = result.stdout.splitlines()
    word, _, text = line.partition(" ")
    assert word == "RESULT"
    assert json.loads(text)["test"] == "ttft"


def test_a_wrong_test_is_said_before_anything_runs(invoke, model_dir):
    with pytest.raises(ConfigError, match="not a test"):
        invoke("protocol", str(model_dir), "--tests", "fast", *SMALL)


@pytest.mark.parametrize("command", ["ops", "protocol"])
def test_help_has_examples(invoke, command):
    assert f"deepinfer bench {command}" in invoke(command, "--help").stdout
