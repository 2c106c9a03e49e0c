"""Steps of an engine that a benchmark wants to look at: random prompts, and where they stand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deepinfer_core.bench.op_times import OpRecorder
from deepinfer_core.engine import Engine
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams

FIRST_ID, SPECIAL_IDS = 10, 300
"""Ids at the start and at the end of a vocabulary that prompts do without."""
SETTLED_TOKENS = 4
"""Of each request before steps count as those of a steady run."""


def random_ids(generator: random.Random, length: int, vocab_size: int) -> list[int]:
    """A prompt like no other, so that the prefix cache has nothing to give."""
    end = max(vocab_size - SPECIAL_IDS, FIRST_ID + 1)
    return [generator.randrange(FIRST_ID, end) for _ in range(length)]


def add_prompts(engine: Engine, prompts: Iterable[Sequence[int]], num_tokens: int) -> list[Request]:
    """Queue prompts for exactly so many greedy tokens each."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    return [request for prompt in prompts for request in engine.add(prompt, params)]


def run_out(engine: Engine) -> None:
    """Advance until nothing is left to do."""
    while engine.has_unfinished:
        engine.advance()


@contextmanager
def decoding(
    engine: Engine, batch: int, *, context: int, num_steps: int, seed: int = 0
) -> Iterator[list[Request]]:
    """Within, every step gives one token to each of `batch` requests, for `num_steps` at least.

    Args:
        context: tokens of each prompt.
    """
    generator, vocab_size = random.Random(seed), engine.info.vocab_size
    prompts = [random_ids(generator, context, vocab_size) for _ in range(batch)]
    # The first prompts are ahead of the last ones by as many tokens as there were steps.
    requests = add_prompts(engine, prompts, num_steps + SETTLED_TOKENS + batch)
    while any(len(request.output_token_ids) < SETTLED_TOKENS for request in requests):
        engine.advance()
    yield requests
    for request in requests:
        engine.abort(request)
    run_out(engine)


@contextmanager
def recording(engine: Engine, *, keeps_arguments: bool) -> Iterator[OpRecorder]:
    """Within, steps run op by op, also those that have been recorded as a whole."""
    graphs: Any = engine.runner.graphs
    model: Any = engine.runner.model
    if graphs is not None:
        graphs.logits = graphs.rehearse
    try:
        with OpRecorder(model, keeps_arguments=keeps_arguments) as recorder:
            yield recorder
    finally:
        if graphs is not None:
            del graphs.logits
