"""Everything that can be proven on a GPU, in one command: `python vendor_ci.py report.json`.

Each part says what it found, and one JSON file has it all. Exits with 1 if anything is wrong.

    conformance  all checks over what the plugin claims
    families     greedy tokens of a tiny model of each family, in float32, equal the CPU's
    verify       with batch_invariant, every answer has the bits of the plain run: tiny models of
                 the dense families, and the first layers of the model that --config describes
    waits        decode steps never wait for the GPU but for one event (--config, else tiny)
    memory       an engine outlives a step that ran out of memory
    model        greedy texts of --model, a GGUF file, in float32, equal the CPU's
    cost         what batch_invariant costs the model that --config describes
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ci_invariance
import ci_memory
import torch
import triton
from ci_greedy import TEXTS, compare_with_cpu
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from dummy_engine import start_engine
from no_sync import BATCHES, find_hidden_wait

PLUGIN = "deepinfer_cuda.plugin"
PROMPT_LENGTHS = (3, 17, 60, 140, 300)
Part = dict[str, Any]


def check_conformance(options: argparse.Namespace) -> Part:
    """Counts, and id and message of each check that did not pass."""
    subject, failed, count = find_subject(PLUGIN), {}, 0
    for check in all_checks(subject, ("L0", "L1", "L2")):
        result = run_check(check)
        count += 1
        if result.outcome != "passed":
            failed[check.id] = f"{result.outcome}: {result.message}"
            print(check.id, failed[check.id], flush=True)
    return {"passed": not failed, "checks": count, "failed": failed}


def check_families(options: argparse.Namespace) -> Part:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 270, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    results: Part = {}
    for family in TINY_FAMILIES:
        with TemporaryDirectory() as directory:
            path = write_tiny_checkpoint(directory, family)
            results[family] = compare_with_cpu(path, prompts, max_tokens=24)
        print(family, results[family], flush=True)
    return {"passed": not any(found["different"] for found in results.values()), **results}


def check_verify(options: argparse.Namespace) -> Part:
    results = {
        family: ci_invariance.verify_tiny(family, num_points=options.points)
        for family in ci_invariance.DENSE_FAMILIES
    }
    if options.config:
        results[f"{options.config.name}, {options.layers} layers"] = ci_invariance.verify_cut(
            options.config, num_layers=options.layers, num_points=options.points
        )
    return {"passed": all(found["passed"] for found in results.values()), **results}


def check_waits(options: argparse.Namespace) -> Part:
    with TemporaryDirectory() as directory:
        path = options.config or write_tiny_checkpoint(directory, "qwen3")
        found = {}
        for batch in BATCHES:
            engine = start_engine(path).engine
            found[str(batch)] = find_hidden_wait(engine, batch)
    return {"passed": not any(found.values()), **found}


def check_memory(options: argparse.Namespace) -> Part:
    return ci_memory.run_out_of_memory()


def check_model(options: argparse.Namespace) -> Part:
    if not options.model:
        return {"passed": True, "skipped": "no --model"}
    found = compare_with_cpu(options.model, TEXTS, max_tokens=64, num_blocks=200)
    return {"passed": not found["different"], "model": options.model.name, **found}


def measure_cost(options: argparse.Namespace) -> Part:
    if not options.config:
        return {"passed": True, "skipped": "no --config"}
    return {"passed": True, **ci_invariance.cost(options.config)}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "conformance": check_conformance,
    "families": check_families,
    "verify": check_verify,
    "waits": check_waits,
    "memory": check_memory,
    "model": check_model,
    "cost": measure_cost,
}


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--parts", default=",".join(PARTS), help="of those above, with commas")
    parser.add_argument("--config", type=Path, help="directory with the config.json of a model")
    parser.add_argument("--layers", type=int, default=3, help="of that model in `verify`")
    parser.add_argument("--points", type=int, default=10, help="of `verify`, for each model")
    parser.add_argument("--model", type=Path, help="GGUF file of a model")
    return parser.parse_args(words)


def run_part(name: str, options: argparse.Namespace) -> Part:
    start = time.perf_counter()
    try:
        found = PARTS[name](options)
    # A part that cannot run is a finding; the others still run.
    except Exception:
        found = {"passed": False, "error": traceback.format_exc()}
    found["seconds"] = round(time.perf_counter() - start, 1)
    print(f"{name}: {json.dumps(found, indent=2)}", flush=True)
    return found


def main() -> int:
    options = parse(sys.argv[1:])
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    for name in options.parts.split(","):
        report[name] = run_part(name, options)
        if options.report:
            options.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    wrong = [name for name in options.parts.split(",") if not report[name]["passed"]]
    print(f"failed: {', '.join(wrong)}" if wrong else "all passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
