"""One request alone: time to the first token by length of prompt, and time per token after it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepinfer_core.bench.clock import StepClock, StepTimes
from deepinfer_core.bench.speed import Bounds, DecodeSpeed, decode_speed, greedy, random_prompts
from deepinfer_core.llm import LLM


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """One length of prompt."""

    prompt_len: int
    ttft_ms: float
    best_ttft_ms: float
    prompt_tokens_per_s: float
    """Prompt tokens by the median time to the first token."""
    decode: DecodeSpeed


def measure_latency(
    llm: LLM,
    bounds: Bounds,
    *,
    prompt_lens: Sequence[int],
    output_len: int,
    repeats: int,
    seed: int,
    tell: Callable[[str], None],
) -> list[LatencyResult]:
    """Serve prompts one at a time, greedily and without an end. Blocks.

    Args:
        output_len: at least 3, so that there are steps that only decode.
        tell: called with what is running.

    Returns:
        One result for each length, in order.
    """
    generator = random.Random(seed)
    times: dict[int, list[float]] = {length: [] for length in prompt_lens}
    steps: dict[int, list[StepTimes]] = {length: [] for length in prompt_lens}
    for repeat in range(repeats):
        for length in prompt_lens:
            tell(f"latency: a prompt of {length} tokens, {repeat + 1} of {repeats}")
            prompts = random_prompts(generator, 1, length, llm.engine.info.vocab_size)
            with StepClock(llm.engine) as clock:
                (output,) = llm.generate(prompts, greedy(output_len), on_error="raise")
            assert output.metrics.ttft_s is not None
            times[length].append(output.metrics.ttft_s * 1e3)
            steps[length] += clock.decode_steps(1)
    return [
        LatencyResult(
            prompt_len=length,
            ttft_ms=statistics.median(times[length]),
            best_ttft_ms=min(times[length]),
            prompt_tokens_per_s=length / statistics.median(times[length]) * 1e3,
            decode=decode_speed(llm.engine.runner.model, steps[length], bounds),
        )
        for length in prompt_lens
    ]
