"""The whole report, its files, and what is refused."""

import builtins
import json
import random

import pytest
from deepinfer_core.bench import run as run_module
from deepinfer_core.bench.report import write_report
from deepinfer_core.bench.run import BenchOptions, run_bench
from deepinfer_core.bench.speed import Bounds, random_prompts
from deepinfer_core.bench.throughput import measure_throughput
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError

SMALL = {"prompt_len": 20, "output_len": 5, "repeats": 1}


@pytest.fixture(scope="module")
def config(model_dir):
    return EngineConfig.from_flat(
        str(model_dir), dtype="float32", num_blocks=200, max_num_seqs=4, plugins=()
    )


@pytest.fixture(scope="module")
def report(config):
    options = BenchOptions(prompt_lens=(8, 40, 600), concurrency=(1, 3, 16), **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LARGE_BYTES", 1 << 20)
        return run_bench(config, options)


def test_what_fits_is_measured_and_the_rest_noted(report):
    assert [r["prompt_len"] for r in report["latency"]] == [8, 40]
    assert [r["num_requests"] for r in report["throughput"]] == [1, 3]
    assert [g["batch_size"] for g in report["gemms"]] == [1, 3]
    assert report["notes"] == [
        "prompts of 600 tokens left out: the model takes 507 and 5 of output",
        "16 requests left out: max_num_seqs is 4",
    ]


def test_a_decode_step_is_set_beside_its_bounds(report):
    decode = report["throughput"][1]["decode"]
    assert decode["batch_size"] == 3
    assert decode["num_steps"] == 4
    assert decode["context_len"] == 20 + (1 + 2 + 3 + 4) / 4
    per_token = 3 * 2 * 2 * 16 * 4  # layers, k and v, heads, head_dim, float32
    assert report["model"]["kv_bytes_per_token"] == per_token
    assert decode["kv_bytes"] == 3 * 22.5 * per_token
    total = decode["weight_bytes"] + decode["kv_bytes"]
    assert decode["bytes_per_s"] == pytest.approx(total / decode["step_ms"] * 1e3)
    bandwidth = report["bandwidth"]["weights_bytes_per_s"]
    assert decode["bandwidth_fraction"] == pytest.approx(decode["bytes_per_s"] / bandwidth)
    assert decode["tokens_per_s"] == pytest.approx(3e3 / decode["step_ms"])
    assert decode["gemm_ms"] == report["gemms"][1]["median_ms"]
    assert decode["best_step_ms"] <= decode["step_ms"]
    assert 0 < decode["engine_ms"] < decode["step_ms"]


def test_a_run_counts_its_tokens(report):
    result = report["throughput"][1]
    assert result["output_tokens_per_s"] == pytest.approx(15 / result["elapsed_s"])
    assert result["total_tokens_per_s"] == pytest.approx(75 / result["elapsed_s"])
    assert result["num_steps"] == 5
    assert 0 < result["edge_ms"] < result["elapsed_s"] * 1e3
    first = report["latency"][1]
    assert first["prompt_tokens_per_s"] == pytest.approx(40e3 / first["ttft_ms"])
    assert first["decode"]["context_len"] == 42.5


def test_the_report_says_what_it_depends_on(report):
    assert report["schema"] == 1
    assert report["model"]["dtype"] == "float32"
    assert report["machine"]["torch"]
    providers = {op["op"]: op["provider"] for op in report["ops"]}
    assert providers["gemm.dense"] == "torch.reference"
    assert report["options"]["seed"] == 0


def test_files(report, tmp_path):
    written = write_report(report, tmp_path / "new" / "dir")
    assert [path.name for path in written] == ["bench.json", "bench.png"]
    assert json.loads(written[0].read_text()) == json.loads(json.dumps(report))
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_latency_alone_is_drawn_too(report, tmp_path):
    assert len(write_report({**report, "throughput": []}, tmp_path)) == 2


def test_without_matplotlib_there_is_json_only(report, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert [path.name for path in write_report(report, tmp_path)] == ["bench.json"]
    assert not (tmp_path / "bench.png").exists()


def test_a_directory_that_cannot_be_made(report, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(report, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_lens": (600,), "concurrency": ()}, "prompts of 600 tokens left out"),
        ({"prompt_lens": (), "concurrency": (16,)}, "max_num_seqs is 4"),
        ({"prompt_lens": (), "concurrency": ()}, "no sizes given"),
        ({"prompt_lens": (), "concurrency": (1,), "prompt_len": 600}, "prompt_len"),
    ],
)
def test_nothing_to_measure_is_an_error(config, options, message):
    with pytest.raises(ConfigError, match=message):
        run_bench(config, BenchOptions(**{**SMALL, **options}))


def test_requests_that_never_decode_together_are_an_error(llm):
    with pytest.raises(ConfigError, match="raise output_len"):
        measure_throughput(
            llm, Bounds(1.0, {}), concurrency=[8], prompt_len=480, output_len=3, repeats=1,
            seed=0, tell=lambda what: None,
        )  # fmt: skip


def test_prompts_differ_from_the_first_token_on():
    prompts = random_prompts(random.Random(1), 20, 50, 320)
    ids = [prompt["prompt_token_ids"] for prompt in prompts]
    assert all(len(each) == 50 and max(each) < 320 for each in ids)
    assert len({tuple(each[:4]) for each in ids}) == 20
