"""Whether every answer is that of the plain run, bits included, and what that costs.

`python ci_invariance.py CONFIG_DIR [LAYERS]` cuts the model that the directory's `config.json`
describes to its first layers, with random weights.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepinfer_cuda.plugin
from deepinfer_core.bench.open_engine import protocol_config
from deepinfer_core.bench.protocol import parse_tests, run_protocol
from deepinfer_core.config import EngineConfig
from deepinfer_core.config_sources import resolve_config
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_tokenizer import write_tokenizer
from deepinfer_core.verify.report import VerifyReport, verify_model

DENSE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
COST_TESTS = "lat:1:1024:32,lat:8:1024:32,lat:32:1024:32,lat:128:1024:32,ttft:1:1024,ttft:1:8192"


def verify_tiny(family: str, *, num_points: int) -> dict[str, Any]:
    """A tiny model of a family, in bfloat16."""
    with TemporaryDirectory() as directory:
        path = write_tiny_checkpoint(directory, family)
        return summary(verify(path, num_points=num_points))


def verify_cut(directory: Path, *, num_layers: int, num_points: int) -> dict[str, Any]:
    """The first layers of a model at its full width, in bfloat16."""
    with cut(directory, num_layers) as path:
        return summary(verify(path, num_points=num_points, load_format="dummy"))


def verify(path: Path, *, num_points: int, **fields: Any) -> VerifyReport:
    config = EngineConfig.from_flat(
        str(path), dtype="bfloat16", kind="cuda", batch_invariant=True, **fields
    )
    return verify_model(config, num_points=num_points, host=cuda_host())


def summary(report: VerifyReport) -> dict[str, Any]:
    """Answers that are equal and different, what was exercised, and the first differences."""
    results = report.results
    places = [difference for result in results for difference in result.differences]
    return {
        "passed": report.passed,
        "prompts": report.num_cases,
        "points": len(results),
        "equal": sum(result.num_equal for result in results),
        "different": sum(result.num_different for result in results),
        "hit_tokens": sum(result.num_hit_tokens for result in results),
        "preemptions": sum(result.num_preemptions for result in results),
        "problems": sorted({problem for result in results for problem in result.problems}),
        "first_differences": [str(difference) for difference in places[:8]],
    }


def cost(directory: Path, tests: str = COST_TESTS) -> dict[str, Any]:
    """Milliseconds of each test with and without the mode, and their ratio; the whole model."""
    plain, invariant = (times(directory, tests, batch_invariant=mode) for mode in (False, True))
    return {
        name: {
            "plain_ms": plain[name],
            "invariant_ms": invariant[name],
            "ratio": invariant[name] / plain[name],
        }
        for name in plain
    }


def times(directory: Path, tests: str, **fields: Any) -> dict[str, float]:
    flags = {"model": str(directory), "load_format": "dummy", "dtype": "bfloat16", **fields}
    config = protocol_config(resolve_config(flags=flags, env={}))
    report = run_protocol(config, parse_tests(tests), host=cuda_host())
    if errors := [result["error"] for result in report["results"] if "error" in result]:
        raise RuntimeError("; ".join(errors))
    figures = {"decode": "step_ms", "ttft": "ttft_ms"}
    return {
        f"{result['test']} {result['batch']} x {result['inp']}": result[figures[result["test"]]]
        for result in report["results"]
    }


def cuda_host() -> PluginHost:
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    return host


@contextmanager
def cut(directory: Path, num_layers: int) -> Iterator[Path]:
    """A directory with the configuration of the first layers, and a tokenizer."""
    with TemporaryDirectory() as copy:
        path = Path(copy)
        shutil.copytree(directory, path, dirs_exist_ok=True)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        config["num_hidden_layers"] = num_layers
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if not (path / "tokenizer.json").exists():
            write_tokenizer(path)
        yield path


def main() -> int:
    directory = Path(sys.argv[1])
    num_layers = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    result = verify_cut(directory, num_layers=num_layers, num_points=10)
    print(json.dumps(result, indent=2), flush=True)
    print(json.dumps(cost(directory), indent=2))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
