"""Level 3: tiny random models answer with a plugin's kernels as they do with the references.

The answer of a prompt is that of the plain run: alone, nothing cached, chunked or overlapped, with
core's own kernels.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from deepinfer_core.llm import LLM
from deepinfer_core.ops.registry import op_name
from deepinfer_core.outputs import RequestOutput
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.checks import Check
from deepinfer_core.testing.subject import Subject
from deepinfer_core.testing.tiny import write_tiny_checkpoint


@dataclass(frozen=True, slots=True)
class Family:
    """What is asked of a tiny model, and how many blocks its pools have."""

    prompt_lengths: Sequence[int] = (1, 16, 17, 40, 61)
    num_blocks: int = 64
    """Room for all prompts at once."""
    few_blocks: int = 9
    """Room for some of them, which outgrow it."""
    num_tokens: int = 24
    """Drawn; enough to outgrow a pool that a prompt was admitted to."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "deepseek_v3": Family(),
    "deepseek_v32": Family(),
    # Outputs close groups of 128 tokens, of which prefix hits are multiples.
    "deepseek_v4": Family((4, 6, 122, 250), num_blocks=256, few_blocks=20, num_tokens=12),
    "deepseek_v41": Family((7, 40, 61), few_blocks=14, num_tokens=12),
}
"""Grouped heads, a window, normalised heads, experts, latents, sparse latents, compressed rows, and
rows that layers share."""
PLAIN: Mapping[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 1,
    "prefix_caching": False,
    "overlap": False,
    "num_threads": 1,
}

Answer = list[list[int]]
"""Token ids of each sample of a prompt."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of running that must not show in the answers."""

    settings: Mapping[str, Any]
    num_samples: int = 1
    has_few_blocks: bool = False
    rounds: int = 1
    """How often the prompts are run on one engine."""
    proof: Callable[[RequestOutput], bool] | None = None
    """Must hold for some output of the last round: that what the mode is about has happened."""


MODES: dict[str, Mode] = {
    "plain": Mode(PLAIN),
    "batched": Mode({**PLAIN, "max_num_seqs": 8, "overlap": True}),
    "chunked": Mode({**PLAIN, "max_num_seqs": 8, "max_num_batched_tokens": 11}),
    "prefix-hit": Mode(
        {**PLAIN, "max_num_seqs": 8, "prefix_caching": True},
        rounds=2,
        proof=lambda output: output.metrics.num_cached_tokens > 0,
    ),
    "preemption": Mode(
        {**PLAIN, "max_num_seqs": 8},
        has_few_blocks=True,
        proof=lambda output: output.metrics.num_preemptions > 0,
    ),
    "two-samples": Mode(
        {**PLAIN, "max_num_seqs": 8, "overlap": True, "prefix_caching": True}, num_samples=2
    ),
}


def list_engine_checks(subject: Subject) -> Iterator[Check]:
    """One check for each family and mode."""
    for family in FAMILIES:
        for name, mode in MODES.items():
            run = partial(_check_mode, subject, family, mode)
            yield Check("L3", "", subject.name, f"{family}-{name}", run, PLAIN["dtype"])


def _check_mode(subject: Subject, family: str, mode: Mode) -> None:
    expected = _plain_answers(family, mode.num_samples)
    asked = FAMILIES[family]
    settings = {
        **mode.settings,
        "num_blocks": asked.few_blocks if mode.has_few_blocks else asked.num_blocks,
        "kind": subject.device.kind,
        "kernels": _overrides(subject),
    }
    with LLM(_checkpoint(family), host=subject.host, **settings) as llm:
        for _ in range(mode.rounds):
            outputs = _generate(llm, asked, mode.num_samples)
            for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
                found = _answer(output)
                assert found == wanted, f"prompt {number}: {found}, the plain run gives {wanted}"
    if mode.proof is not None:
        assert any(mode.proof(output) for output in outputs), "what was to be tried did not happen"


def _overrides(subject: Subject) -> dict[str, tuple[str, ...]]:
    """The plugin's kernels wherever they can serve, core's elsewhere."""
    if subject.record.is_builtin:
        return {}
    providers: dict[str, tuple[str, ...]] = {}
    for kernel in subject.kernels:
        op = op_name(kernel.op)
        providers[op] = (*providers.get(op, ()), kernel.provider)
    return {op: (*own, "torch.reference") for op, own in providers.items()}


@cache
def _checkpoint(family: str) -> Path:
    directory = tempfile.mkdtemp(prefix="deepinfer-tiny-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_tiny_checkpoint(directory, family)


@cache
def _plain_answers(family: str, num_samples: int) -> list[Answer]:
    asked, host = FAMILIES[family], PluginHost(load_entry_points=False)
    settings = {**PLAIN, "num_blocks": asked.num_blocks}
    with LLM(_checkpoint(family), host=host, kind="cpu", **settings) as llm:
        return [_answer(output) for output in _generate(llm, asked, num_samples)]


def _generate(llm: LLM, asked: Family, num_samples: int) -> list[RequestOutput]:
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 300) for _ in range(n)] for n in asked.prompt_lengths]
    params = {
        "temperature": 0.0 if num_samples == 1 else 0.8,
        "seed": 1,
        "n": num_samples,
        "max_tokens": asked.num_tokens,
        "ignore_eos": True,
    }
    return llm.generate(prompts, params, on_error="raise", progress=False)


def _answer(output: RequestOutput) -> Answer:
    return [sample.token_ids for sample in output.outputs]
