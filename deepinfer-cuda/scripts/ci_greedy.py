"""Greedy tokens of the GPU beside the CPU's, in float32 without TF32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepinfer_cuda.plugin
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PROMPT_LENGTHS = (3, 17, 60, 140, 300)
CLOSE = 1e-3
"""Where two tokens' log-probabilities differ by less, another rounding may choose the other."""
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "2, 3, 5, 7, 11,",
    "The ship left the harbor at dawn with forty barrels of salt and a letter for the governor. "
    "By noon the wind had turned, and the captain asked the cook what he thought of the sky. "
    "Nobody answered. The gulls that had followed them since the lighthouse were gone. " * 4,
)

Prompts = Sequence[str | Sequence[int]]


def compare_family(family: str) -> dict[str, Any]:
    """A tiny model with random weights."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 270, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    with TemporaryDirectory() as directory:
        path = write_tiny_checkpoint(directory, family)
        return compare_with_cpu(path, prompts, max_tokens=24)


def compare_model(path: Path) -> dict[str, Any]:
    """A real model, on real texts."""
    return compare_with_cpu(path, TEXTS, max_tokens=48, num_blocks=200)


def compare_with_cpu(
    path: Path, prompts: Prompts, *, max_tokens: int, num_blocks: int = 400
) -> dict[str, Any]:
    """How many answers are equal, and where the others part: `close` ones, and `different` ones."""
    options = {"max_tokens": max_tokens, "num_blocks": num_blocks}
    pairs = zip(
        generate(path, prompts, kind="cpu", **options),
        generate(path, prompts, kind="cuda", **options),
        strict=True,
    )
    result: dict[str, Any] = {"close": [], "different": []}
    equal = tokens = 0
    for cpu, gpu in pairs:
        tokens += len(cpu.output_token_ids)
        place = first_difference(cpu.output_token_ids, gpu.output_token_ids)
        if place is None:
            equal += 1
            continue
        best, second = cpu.logprobs[place].top_logprobs[:2]
        kind = "close" if best - second < CLOSE else "different"
        where = f"prompt of {cpu.num_prompt_tokens}, token {place}"
        result[kind].append(f"{where}: the CPU's best two are {best - second:.1e} apart")
    counts = {"answers equal": equal, "close": len(result["close"]), "tokens": tokens}
    return {"passed": not result["different"], "counts": counts, **result}


def generate(
    path: Path, prompts: Prompts, *, kind: str, max_tokens: int, num_blocks: int
) -> list[Request]:
    """Greedy answers of a device of this kind, all prompts in one batch."""
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    config = EngineConfig.from_flat(str(path), dtype="float32", num_blocks=num_blocks, kind=kind)
    torch.backends.cuda.matmul.allow_tf32 = False
    engine = Engine.from_config(config, host)
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, logprobs=2)
    requests: list[Request] = []
    for prompt in prompts:
        ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        requests += engine.add(ids, params)
    while engine.has_unfinished:
        engine.advance()
    return requests


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first place where two answers of one length part."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((place for place, (a, b) in pairs if a != b), None)
