"""Whether every answer is that of the plain run, bits included, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepinfer_cuda.plugin
from deepinfer_core.bench.invariance import measure_invariance
from deepinfer_core.bench.open_engine import protocol_config
from deepinfer_core.bench.protocol import parse_tests
from deepinfer_core.config import EngineConfig
from deepinfer_core.config_sources import resolve_config
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_tokenizer import write_tokenizer
from deepinfer_core.verify.report import VerifyReport, verify_model

COST_TESTS = "lat:1:1024:32,lat:8:1024:32,lat:32:1024:32,lat:128:1024:32,ttft:1:1024,ttft:1:8192"
EIGHT_B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
"""The shape of Qwen3-8B."""
MAX_TOKENS = 8
"""Of each answer in `verify`."""


def verify_tiny(family: str, num_points: int) -> dict[str, Any]:
    """A tiny model of a family, in bfloat16."""
    with TemporaryDirectory() as directory:
        path = write_tiny_checkpoint(directory, family)
        return summary(verify(path, num_points=num_points))


def verify_large(num_layers: int, num_points: int) -> dict[str, Any]:
    """The first layers of an 8B model at its full width, in bfloat16."""
    with shape(num_hidden_layers=num_layers) as path:
        return summary(verify(path, num_points=num_points, load_format="dummy"))


def verify(path: Path, *, num_points: int, **fields: Any) -> VerifyReport:
    config = EngineConfig.from_flat(
        str(path), dtype="bfloat16", kind="cuda", batch_invariant=True, **fields
    )
    return verify_model(config, num_points=num_points, max_tokens=MAX_TOKENS, host=cuda_host())


def summary(report: VerifyReport) -> dict[str, Any]:
    """Answers that are equal and different, what was exercised, and the first differences."""
    results = report.results
    places = [difference for result in results for difference in result.differences]
    counts = {
        "points": len(results),
        "answers equal": sum(result.num_equal for result in results),
        "different": sum(result.num_different for result in results),
    }
    return {
        "passed": report.passed,
        "counts": counts,
        "prompts": report.num_cases,
        "hit_tokens": sum(result.num_hit_tokens for result in results),
        "preemptions": sum(result.num_preemptions for result in results),
        "problems": sorted({problem for result in results for problem in result.problems}),
        "first_differences": [str(difference) for difference in places[:8]],
    }


def cost() -> dict[str, Any]:
    """What the mode costs an 8B model."""
    with shape() as path:
        flags = {"model": str(path), "load_format": "dummy", "dtype": "bfloat16"}
        config = protocol_config(resolve_config(flags=flags, env={}))
        report = measure_invariance(config, parse_tests(COST_TESTS), repeats=2, host=cuda_host())
    results = report["plain"]["results"] + report["invariant"]["results"]
    errors = [result["error"] for result in results if "error" in result]
    return {"passed": not errors, "costs": report["costs"], "errors": errors}


def cuda_host() -> PluginHost:
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    return host


@contextmanager
def shape(**changes: Any) -> Iterator[Path]:
    """A directory with the configuration of an 8B model, but for some changes; no weights."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        (path / "config.json").write_text(json.dumps(EIGHT_B | changes), encoding="utf-8")
        write_tokenizer(path)
        yield path
