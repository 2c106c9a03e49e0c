"""Everything that can be proven on a GPU, in one command: `python vendor_ci.py report.json`.

Takes 140 seconds on an H200 with 16 cores, most of it compiling kernels, so the next is quicker.
Parts share the processes, so all together take little longer than the longest. Seconds that each
takes alone in a fresh installation, 15 of them imports, and after which it is ended:

    conformance 120, 300  all checks over what the plugin claims
    families     35, 150  greedy tokens of a tiny model of each family, in float32, equal the CPU's,
                          but where the CPU's best two are less than 1e-3 apart
    model        40, 120  the same for real texts and the GGUF file --model, which `make model`
                          fetches; left out where there is none, but if named
    verify       45, 200  with batch_invariant, every answer has the bits of the plain run: a tiny
                          model of each family in bfloat16, and the first layers of an 8B model
    waits        20, 100  decode steps never wait for the GPU but for one event
    memory       20, 100  an engine outlives a step that ran out of memory
    bits         20, 100  products of few rows give the same bits 200 times, beside copies
    cost         80, 200  what batch_invariant costs an 8B model; only if named, nothing beside it

Each part says in one line what it found, and one JSON file has it all. Exits with 1 if anything is
wrong. Needs no network and no files but that of --model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
from ci_pool import Found, Job, run_jobs
from deepinfer_core.testing.tiny_families import TINY_FAMILIES
from deepinfer_cuda.probe import find_devices

MODEL = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
L1_SHARES, L2_SHARES = 120, 60
"""So many that no process is left with a long one at the end."""
CORES_FOR_OTHERS = 2
WAITING_FAMILIES = ("qwen3", "deepseek_v3")


def conformance(options: argparse.Namespace) -> list[Job]:
    shares = {"L0": 1, "far": 1, "L1": L1_SHARES, "L2": L2_SHARES}
    return [
        Job("conformance", f"{level} {share}", "ci_conformance:run_checks", (level, share, count))
        for level, count in shares.items()
        for share in range(count)
    ]


def families(options: argparse.Namespace) -> list[Job]:
    return [Job("families", name, "ci_greedy:compare_family", (name,)) for name in TINY_FAMILIES]


def model(options: argparse.Namespace) -> list[Job]:
    return [Job("model", options.model.name, "ci_greedy:compare_model", (options.model,))]


def verify(options: argparse.Namespace) -> list[Job]:
    large = Job("verify", "8B", "ci_invariance:verify_large", (options.layers, options.points))
    tiny = [
        Job("verify", name, "ci_invariance:verify_tiny", (name, options.points))
        for name in TINY_FAMILIES
    ]
    return [large, *tiny]


def waits(options: argparse.Namespace) -> list[Job]:
    return [Job("waits", name, "no_sync:check_family", (name,)) for name in WAITING_FAMILIES]


def memory(options: argparse.Namespace) -> list[Job]:
    return [Job("memory", "llama", "ci_memory:run_out_of_memory")]


def bits(options: argparse.Namespace) -> list[Job]:
    return [Job("bits", "products", "ci_bits:repeat_products")]


def cost(options: argparse.Namespace) -> list[Job]:
    return [Job("cost", "8B", "ci_invariance:cost")]


class Part(NamedTuple):
    make_jobs: Callable[[argparse.Namespace], list[Job]]
    limit_s: float
    is_alone: bool = False
    """It measures: nothing may run beside it."""


PARTS = {
    "verify": Part(verify, 200),
    "model": Part(model, 120),
    "families": Part(families, 150),
    "waits": Part(waits, 100),
    "memory": Part(memory, 100),
    "bits": Part(bits, 100),
    "conformance": Part(conformance, 300),
    "cost": Part(cost, 200, is_alone=True),
}
"""In order of start: those whose jobs are long go first."""


def main() -> int:
    options = parse(sys.argv[1:])
    # Processes share out the cores; those that compare with the CPU have two each.
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    report: dict[str, Any] = {**facts(), "parts": {}}
    for is_alone in (False, True):
        names = [
            name for name in PARTS if name in options.parts and PARTS[name].is_alone is is_alone
        ]
        report["parts"] |= run_parts(names, options, 1 if is_alone else options.workers)
    if options.report:
        options.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    wrong = [name for name, found in report["parts"].items() if not found["passed"]]
    print(f"failed: {', '.join(wrong)}" if wrong else "all passed")
    return 1 if wrong else 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = os.cpu_count() or 1
    left_out = {"cost"} if MODEL.exists() else {"cost", "model"}
    default = [name for name in PARTS if name not in left_out]
    parser.add_argument("report", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), default=default, help="names, with commas"
    )
    parser.add_argument("--workers", type=int, default=max(1, cores - CORES_FOR_OTHERS))
    parser.add_argument("--model", type=Path, default=MODEL, help="GGUF file")
    parser.add_argument("--layers", type=int, default=3, help="of the 8B model in `verify`")
    parser.add_argument("--points", type=int, default=6, help="of `verify`, for each model")
    options = parser.parse_args(words)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return options


def run_parts(names: list[str], options: argparse.Namespace, num_workers: int) -> dict[str, Found]:
    """Run parts side by side, and say of each what it found when its last job ended."""
    jobs = [job for name in names for job in PARTS[name].make_jobs(options)]
    left = Counter(job.part for job in jobs)
    found: dict[str, dict[str, Found]] = {name: {} for name in names}
    results = {}
    begun = time.monotonic()
    limits_s = {name: PARTS[name].limit_s for name in names}
    for job, result in run_jobs(jobs, limits_s, num_workers):
        found[job.part][job.name] = result
        left[job.part] -= 1
        if not left[job.part]:
            part = sum_up(found[job.part], time.monotonic() - begun)
            results[job.part] = part
            print(describe(job.part, part), flush=True)
    return results


def sum_up(jobs: dict[str, Found], seconds: float) -> Found:
    counts: Counter[str] = Counter()
    for found in jobs.values():
        counts.update(found.get("counts", {}))
    return {
        "passed": all(found["passed"] for found in jobs.values()),
        "counts": {what: count for what, count in counts.items() if count},
        "seconds": round(seconds, 1),
        "seconds_of_work": round(sum(found.get("seconds", 0) for found in jobs.values()), 1),
        "jobs": jobs,
    }


def describe(name: str, part: Found) -> str:
    """One line, and one more for each job that failed."""
    words = [f"{count} {what}" for what, count in part["counts"].items()]
    words.append(f"{part['seconds_of_work']:.0f} s of work, done after {part['seconds']:.0f} s")
    lines = [f"{name:12} {'passed' if part['passed'] else 'FAILED'}: {', '.join(words)}"]
    for job, found in part["jobs"].items():
        if not found["passed"]:
            what = found.get("error", "").strip().splitlines()[-1:] or [
                json.dumps({key: value for key, value in found.items() if key != "output"})
            ]
            lines.append(f"  {job}: {what[0][:400]}")
    return "\n".join(lines)


def facts() -> dict[str, str]:
    """Asked of the driver and of the installation: torch would take a context, and seconds."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(find_devices()[0].uuid)
    versions = {name: version(name) for name in ("torch", "triton")}
    return {
        "gpu": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        **versions,
    }


if __name__ == "__main__":
    sys.exit(main())
