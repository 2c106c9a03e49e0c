"""`DecodeSpeed`: steps in which every request gets one token, beside what bounds them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.bench.clock import ENGINE_PARTS, StepTimes, median_parts_ms
from deepinfer_core.bench.cost import kv_bytes, weight_bytes
from deepinfer_core.bench.gemms import GemmSpeed
from deepinfer_core.faces.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a step is compared with."""

    bytes_per_s: float
    """Read bandwidth for a buffer of the size of the model's weights."""
    gemms: dict[int, GemmSpeed]
    """By batch size."""


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """One batch size. Times are medians over steps unless they say `best`."""

    batch_size: int
    context_len: float
    """Mean tokens that a request attends to."""
    num_steps: int
    step_ms: float
    best_step_ms: float
    tokens_per_s: float
    weight_bytes: int
    kv_bytes: int
    """Read per step, as `weight_bytes`."""
    bytes_per_s: float
    bandwidth_fraction: float
    """Of the measured read bandwidth."""
    gemm_ms: float
    """The GEMMs alone."""
    gemm_tokens_per_s: float
    engine_ms: float
    """Everything outside the model's forward and the sampler."""
    parts_ms: dict[str, float]


def decode_speed(model: Any, steps: Sequence[StepTimes], bounds: Bounds) -> DecodeSpeed:
    """Sum up decode steps of one batch size.

    Args:
        model: with weights in place.
        steps: at least one; all of the same number of requests.
    """
    batch_size = len(steps[0].seq_lens)
    step_s = statistics.median(step.total_s for step in steps)
    layers = model.layer_kv()
    weights = weight_bytes(model, batch_size)
    kv = round(statistics.fmean(kv_bytes(layers, step.seq_lens) for step in steps))
    gemm_ms = bounds.gemms[batch_size].median_ms
    parts_ms = median_parts_ms(steps)
    return DecodeSpeed(
        batch_size=batch_size,
        context_len=statistics.fmean(length for step in steps for length in step.seq_lens),
        num_steps=len(steps),
        step_ms=step_s * 1e3,
        best_step_ms=min(step.total_s for step in steps) * 1e3,
        tokens_per_s=batch_size / step_s,
        weight_bytes=weights,
        kv_bytes=kv,
        bytes_per_s=(weights + kv) / step_s,
        bandwidth_fraction=(weights + kv) / step_s / bounds.bytes_per_s,
        gemm_ms=gemm_ms,
        gemm_tokens_per_s=batch_size / gemm_ms * 1e3,
        engine_ms=sum(parts_ms[part] for part in ENGINE_PARTS),
        parts_ms=parts_ms,
    )


def random_prompts(
    generator: random.Random, count: int, length: int, vocab_size: int
) -> list[Prompt]:
    """Prompts of random ids: none begins like another, so the prefix cache has nothing to give."""
    return [
        {"prompt_token_ids": [generator.randrange(vocab_size) for _ in range(length)]}
        for _ in range(count)
    ]


def greedy(num_tokens: int) -> dict[str, Any]:
    """Sampling parameters for exactly so many tokens."""
    return {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
