"""Everything that can be proven on a GPU, in one command: `python vendor_ci.py report.json`.

Runs the conformance suite over what the plugin claims, then compares greedy tokens of a tiny model
of each family, in float32 without TF32, with those of the CPU. Exits with 1 if anything differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import deepinfer_cuda.plugin
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint

PLUGIN = "deepinfer_cuda.plugin"
PROMPT_LENGTHS = (3, 17, 60, 140, 300)
MAX_TOKENS = 24
CLOSE = 1e-3
"""Where two tokens' log-probabilities differ by less, another rounding may choose the other."""


def check_conformance() -> dict[str, Any]:
    """Counts, and id and message of each check that did not pass."""
    subject, failed, count = find_subject(PLUGIN), {}, 0
    for check in all_checks(subject, ("L0", "L1", "L2")):
        result = run_check(check)
        count += 1
        if result.outcome != "passed":
            failed[check.id] = f"{result.outcome}: {result.message}"
            print(check.id, failed[check.id], flush=True)
    return {"device": str(subject.device), "checks": count, "failed": failed}


def check_families() -> dict[str, str]:
    """Family -> `equal`, or where its tokens part from the CPU's."""
    results = {}
    for family in TINY_FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            path = write_tiny_checkpoint(directory, family)
            pairs = zip(generate(path, on_gpu=False), generate(path, on_gpu=True), strict=True)
            parted = [text for pair in pairs if (text := compare(*pair))]
        results[family] = "; ".join(parted) or "equal"
        print(family, results[family], flush=True)
    return results


def generate(path: Path, *, on_gpu: bool) -> list[Request]:
    host = PluginHost(load_entry_points=False)
    if on_gpu:
        host.register(deepinfer_cuda.plugin, name="cuda")
    config = EngineConfig.from_flat(str(path), dtype="float32", num_blocks=400)
    engine = Engine.from_config(config, host)
    generator = torch.Generator().manual_seed(1)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True, logprobs=2)
    requests: list[Request] = []
    for length in PROMPT_LENGTHS:
        ids = torch.randint(3, 270, (length,), generator=generator).tolist()
        requests += engine.add(ids, params)
    while engine.has_unfinished:
        engine.advance()
    return requests


def compare(cpu: Request, gpu: Request) -> str | None:
    """Where two answers part, unless the choice was too close to call."""
    for place, (ours, theirs) in enumerate(
        zip(cpu.output_token_ids, gpu.output_token_ids, strict=True)
    ):
        if ours != theirs:
            best, second = cpu.logprobs[place].top_logprobs[:2]
            if best - second < CLOSE:
                return None
            return f"prompt of {cpu.num_prompt_tokens}: token {place}, {best - second:.4f} apart"
    return None


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    start = time.perf_counter()
    report = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "conformance": check_conformance(),
        "families": check_families(),
        "seconds": round(time.perf_counter() - start, 1),
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    is_good = not report["conformance"]["failed"] and set(report["families"].values()) == {"equal"}
    print("all passed" if is_good else "failed", report["conformance"]["checks"], "checks")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
