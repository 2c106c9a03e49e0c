"""What `batch_invariant` costs: the same tests twice, and their ratio."""

import json

import pytest
import typer
from deepinfer_core.bench import ceilings as ceilings_module
from deepinfer_core.bench import invariance
from deepinfer_core.bench.invariance import measure_invariance
from deepinfer_core.bench.protocol import parse_tests
from deepinfer_core.cli import bench_cmd
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugins import PluginHost
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings_module, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings_module, "LARGEST_SIDE", 512)


def measure(model_dir, tests, **options):
    config = EngineConfig.from_flat(
        str(model_dir), dtype="float32", num_blocks=100, max_num_seqs=8, batch_invariant=True
    )
    host = PluginHost(load_entry_points=False)
    return measure_invariance(config, parse_tests(tests), repeats=1, host=host, **options)


def test_both_ways_are_run_with_their_own_kernels_and_compared(model_dir):
    emitted = []
    report = measure(model_dir, "lat:2:8:9,ttft:1:30,thr:3:8:5", emit=emitted.append)
    assert [result["mode"] for result in emitted] == ["plain"] * 3 + ["invariant"] * 3
    assert ("attn.paged", "torch.reference") in report["plain"]["ops"]
    assert ("attn.paged", "torch.invariant") in report["invariant"]["ops"]
    decode, ttft, throughput = report["costs"]
    assert (decode["test"], decode["batch"], decode["inp"], decode["out"]) == ("decode", 2, 8, 9)
    assert (ttft["figure"], throughput["figure"], throughput["n"]) == ("ttft_ms", "wall_s", 3)
    for cost, plain, other in zip(
        report["costs"], report["plain"]["results"], report["invariant"]["results"], strict=True
    ):
        assert (cost["plain"], cost["invariant"]) == (plain[cost["figure"]], other[cost["figure"]])
        assert cost["ratio"] == pytest.approx(cost["invariant"] / cost["plain"])
    json.dumps(report)


def test_a_test_that_cannot_be_run_has_no_cost(model_dir):
    report = measure(model_dir, "ttft:1:9999,ttft:1:8")
    assert [cost["inp"] for cost in report["costs"]] == [8]
    assert "error" in report["invariant"]["results"][0]


def test_the_command_prints_a_line_for_each_cost(monkeypatch, model_dir):
    def run(config, tests, *, emit, **options):
        emit({"test": "ttft", "mode": "plain"})
        return {"costs": [{"test": "ttft", "ratio": 1.23456}]}

    monkeypatch.setattr(invariance, "measure_invariance", run)
    app = typer.Typer()
    bench_cmd.register(app)
    words = ["bench", "protocol", str(model_dir), "--tests", "smoke", "--invariance-cost"]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    assert lines == [
        'RESULT {"test": "ttft", "mode": "plain"}',
        'COST {"test": "ttft", "ratio": 1.2346}',
    ]
