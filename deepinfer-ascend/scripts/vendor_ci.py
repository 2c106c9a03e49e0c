"""Everything that can be proven on an NPU, in one command: `python vendor_ci.py report.json`.

Each part says what it found, and one JSON file has it all. Exits with 1 if anything is wrong.

    conformance  all checks over what the plugin claims, and tiny models in float32 in every mode
    families     a tiny model of each family in 16 bits gives a text the CPU's log-probabilities
    memory       what the device says is free, and that an allocation beyond it is an error
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import Subject, find_subject
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from torch import Tensor

PLUGIN = "deepinfer_ascend.plugin"
EMULATED = "deepinfer_ascend.emulation.plugin:on_{}"
PROMPT_LENGTHS = (3, 17, 60, 140, 300)
MAX_TOKENS = 16
DTYPE = "float16"
"""Nearest to the CPU's roundings of what the operators take."""
FACTOR, LEAST = 5.0, 1e-3
"""Log-probabilities may be apart by so many times what roundings to 16 bits do on a CPU."""
Part = dict[str, Any]


def check_conformance(subject: Subject) -> Part:
    """Counts by outcome, and id and message of each check that did not pass."""
    failed, outcomes, ops = {}, Counter[str](), Counter[str]()
    for check in all_checks(subject):
        result = run_check(check)
        outcomes[result.outcome] += 1
        ops[result.op or "whole"] += 1
        if result.outcome != "passed":
            failed[check.id] = f"{result.outcome}: {result.message}"
            print(check.id, failed[check.id], flush=True)
    passed = outcomes["failed"] == 0
    return {"passed": passed, "outcomes": dict(outcomes), "ops": dict(ops), "not_passed": failed}


def check_families(subject: Subject) -> Part:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 270, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    results: Part = {}
    for family in TINY_FAMILIES:
        with TemporaryDirectory() as directory:
            path = write_tiny_checkpoint(directory, family)
            results[family] = compare_with_cpu(path, prompts, subject)
        print(family, results[family], flush=True)
    passed = all(found["distance"] <= found["allowed"] for found in results.values())
    return {"passed": passed, **results}


def compare_with_cpu(path: Path, prompts: Sequence[Sequence[int]], subject: Subject) -> Part:
    """How many answers are equal, and how far the log-probabilities of the CPU's answers are."""
    alone = PluginHost(load_entry_points=False)
    with start(path, alone, "cpu") as cpu:
        answers = answer(cpu, prompts)
        expected = score(cpu, prompts, answers)
    with start(path, alone, "cpu", dtype="float32") as cpu:
        rounding = middle(score(cpu, prompts, answers) - expected)
    with start(path, subject.host, subject.device.kind) as npu:
        found = answer(npu, prompts)
        distance = middle(score(npu, prompts, answers) - expected)
    equal = sum(ours == theirs for ours, theirs in zip(found, answers, strict=True))
    result: Part = {"equal": equal, "of": len(answers)}
    return {**result, "distance": distance, "allowed": FACTOR * max(rounding, LEAST)}


def middle(differences: Tensor) -> float:
    """Single ones are far where a rounding sends a token to another expert."""
    return round(differences.abs().median().item(), 5)


def start(path: Path, host: PluginHost, kind: str, dtype: str = DTYPE) -> LLM:
    return LLM(path, host=host, kind=kind, dtype=dtype, block_size=128, num_blocks=100)


def answer(llm: LLM, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True)
    outputs = llm.generate(prompts, params, on_error="raise", progress=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def score(llm: LLM, prompts: Sequence[Sequence[int]], answers: Sequence[list[int]]) -> Tensor:
    """Log-probability of each token of the answers, all of them one after another."""
    outputs = llm.score(prompts, answers, on_error="raise", progress=False)
    return torch.tensor([logprob for output in outputs for logprob in output.logprobs])


def check_memory(subject: Subject) -> Part:
    runtime = subject.runtime
    free, total = runtime.memory_info()
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=runtime.torch_device)
    except RuntimeError:
        return {"passed": 0 < free <= total, "free_bytes": free, "total_bytes": total}
    return {"passed": False, "error": f"twice the memory ({2 * total:,} bytes) was handed out"}


PARTS: dict[str, Callable[[Subject], Part]] = {
    "conformance": check_conformance,
    "families": check_families,
    "memory": check_memory,
}


def describe(subject: Subject) -> Part:
    """What the report is about."""
    names = ("torch", "torch_npu", "deepinfer-core", "deepinfer-ascend")
    return {
        "device": subject.device.arch,
        "is_emulated": "emulated" in subject.device.features,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **{name: version_of(name) for name in names},
        "toolkit": toolkit_version(),
    }


def version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def toolkit_version() -> str | None:
    """As the toolkit's own file says it; None where there is none."""
    for path in sorted(Path("/usr/local/Ascend").glob("ascend-toolkit/latest/*/ascend_*.info")):
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [line.partition("=")[2] for line in lines if line.startswith("version=")]
        if found:
            return found[0]
    return None


def run_part(name: str, subject: Subject) -> Part:
    start = time.perf_counter()
    try:
        found = PARTS[name](subject)
    # A part that cannot run is a finding; the others still run.
    except Exception:
        found = {"passed": False, "error": traceback.format_exc()}
    found["seconds"] = round(time.perf_counter() - start, 1)
    print(f"{name}: {json.dumps(found, indent=2)}", flush=True)
    return found


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--parts", default=",".join(PARTS), help="of those above, with commas")
    parser.add_argument("--emulate", metavar="CHIP", help="910b, 910c or 950, without an NPU")
    options = parser.parse_args(words)
    plugin = PLUGIN if options.emulate is None else EMULATED.format(options.emulate)
    subject = find_subject(plugin, device_kind="npu")
    report = describe(subject)
    names = options.parts.split(",")
    for name in names:
        report[name] = run_part(name, subject)
        if options.report:
            options.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    wrong = [name for name in names if not report[name]["passed"]]
    print(f"failed: {', '.join(wrong)}" if wrong else "all passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
