"""`deepinfer bench`: options become a configuration and sizes, the report tables or JSON."""

import json

import pytest
import typer
from deepinfer_core.bench import run as run_module
from deepinfer_core.bench.run import run_bench
from deepinfer_core.cli import bench_cmd
from deepinfer_core.errors import ConfigError
from typer.testing import CliRunner


@pytest.fixture
def calls(monkeypatch):
    """(configuration, options) of each run, which measures the tiny model for real."""
    seen = []

    def run(config, options, tell):
        seen.append((config, options))
        return run_bench(config, options, tell=tell)

    monkeypatch.setattr(run_module, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(run_module, "run_bench", run)
    return seen


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


SMALL = ("--output-len", "4", "--repeats", "1", "--num-blocks", "100", "--dtype", "float32")


def test_latency_prints_tables(invoke, calls, model_dir):
    result = invoke("latency", str(model_dir), "--prompt-lens", "8, 20,8", *SMALL)
    assert result.exit_code == 0
    ((config, options),) = calls
    assert config.model.model == str(model_dir)
    assert (config.model.dtype, config.cache.num_blocks) == ("float32", 100)
    assert options.prompt_lens == (8, 20)
    assert options.concurrency == ()
    assert "One request alone" in result.stdout
    assert "1 @ 20" in result.stdout
    assert "Many requests" not in result.stdout


def test_throughput_prints_json(invoke, calls, model_dir):
    result = invoke("throughput", "--model", str(model_dir), "--concurrency", "2",
                    "--prompt-len", "9", "--json", *SMALL)  # fmt: skip
    report = json.loads(result.stdout)
    assert calls[0][1].prompt_lens == ()
    assert report["latency"] == []
    assert [(r["num_requests"], r["prompt_len"]) for r in report["throughput"]] == [(2, 9)]


def test_all_writes_files(invoke, calls, model_dir, tmp_path):
    result = invoke("all", str(model_dir), "--prompt-lens", "8", "--concurrency", "1,2",
                    "--prompt-len", "9", "--output", str(tmp_path), *SMALL)  # fmt: skip
    assert "One request alone" in result.stdout
    assert "Many requests at once, 9 tokens in and 4 out" in result.stdout
    assert f"wrote {tmp_path / 'bench.json'}" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no model"),
        (("a", "--model", "b"), "given twice"),
        (("a", "--concurrency", "1,,2"), "numbers above 0"),
        (("a", "--concurrency", "1,x"), "--concurrency"),
        (("a", "--prompt-lens", "0"), "--prompt-lens"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(invoke, calls, words, message):
    with pytest.raises(ConfigError, match=message):
        invoke("all", *words)
    assert calls == []


@pytest.mark.parametrize("command", ["latency", "throughput", "all"])
def test_help_has_examples(invoke, command):
    assert f"deepinfer bench {command}" in invoke(command, "--help").stdout
