"""Many requests at once: tokens per second over a whole run, and of its decode steps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepinfer_core.bench.clock import StepClock
from deepinfer_core.bench.speed import Bounds, DecodeSpeed, decode_speed, greedy, random_prompts
from deepinfer_core.errors import ConfigError
from deepinfer_core.llm import LLM


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """One number of concurrent requests, all submitted at once."""

    num_requests: int
    prompt_len: int
    output_len: int
    elapsed_s: float
    output_tokens_per_s: float
    """Over the whole run, prompts included."""
    total_tokens_per_s: float
    num_steps: int
    num_preemptions: int
    edge_ms: float
    """Per step: everything outside the engine, such as turning ids into text."""
    decode: DecodeSpeed


def measure_throughput(
    llm: LLM,
    bounds: Bounds,
    *,
    concurrency: Sequence[int],
    prompt_len: int,
    output_len: int,
    repeats: int,
    seed: int,
    tell: Callable[[str], None],
) -> list[ThroughputResult]:
    """Serve so many prompts together, greedily and without an end. Blocks.

    Args:
        output_len: long enough that all requests decode together for some steps.
        tell: called with what is running.

    Returns:
        The quickest of `repeats` runs for each number of requests, in order.

    Raises:
        ConfigError: outputs so short, or a pool so small, that no step decodes all requests.
    """
    generator = random.Random(seed)
    results: dict[int, ThroughputResult] = {}
    for repeat in range(repeats):
        for count in concurrency:
            tell(f"throughput: {count} requests, {repeat + 1} of {repeats}")
            result = _run(llm, bounds, count, prompt_len, output_len, generator)
            if count not in results or result.elapsed_s < results[count].elapsed_s:
                results[count] = result
    return list(results.values())


def _run(
    llm: LLM,
    bounds: Bounds,
    count: int,
    prompt_len: int,
    output_len: int,
    generator: random.Random,
) -> ThroughputResult:
    prompts = random_prompts(generator, count, prompt_len, llm.engine.info.vocab_size)
    with StepClock(llm.engine) as clock:
        begun = time.perf_counter()
        outputs = llm.generate(prompts, greedy(output_len), on_error="raise", progress=False)
        elapsed_s = time.perf_counter() - begun
    decode_steps = clock.decode_steps(count)
    if not decode_steps:
        raise ConfigError(
            f"{count} requests never decoded together; raise output_len, "
            "scheduler.max_num_batched_tokens or cache.num_blocks",
            field="output_len",
            value=output_len,
        )
    in_steps_s = sum(step.total_s for step in clock.steps)
    return ThroughputResult(
        num_requests=count,
        prompt_len=prompt_len,
        output_len=output_len,
        elapsed_s=elapsed_s,
        output_tokens_per_s=count * output_len / elapsed_s,
        total_tokens_per_s=count * (prompt_len + output_len) / elapsed_s,
        num_steps=len(clock.steps),
        num_preemptions=sum(output.metrics.num_preemptions for output in outputs),
        edge_ms=(elapsed_s - in_steps_s) / len(clock.steps) * 1e3,
        decode=decode_speed(llm.engine.runner.model, decode_steps, bounds),
    )
