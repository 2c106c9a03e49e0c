"""A step for which memory runs out costs time, never an answer; see also the random schedules."""

import logging

import pytest
import torch
from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import SamplingParams

ERRORS = [
    torch.OutOfMemoryError("out of memory: tried to allocate 20.00 MiB"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
]
STYLES = [
    {"temperature": 0},
    {"seed": 4, "presence_penalty": 0.7, "frequency_penalty": 0.5, "logprobs": 2},
    {"seed": 5, "n": 3, "top_p": 0.9},
    {"temperature": 0, "prompt_logprobs": 1},
]


class ShortOfMemory:
    """A model or sampler one of whose calls fails when `fits` says so of its first argument."""

    def __init__(self, inner, method, fits, error):
        self._inner, self._method, self._fits, self._error = inner, method, fits, error
        self.num_failures = 0

    def __getattr__(self, name):
        call = getattr(self._inner, name)
        if name != self._method:
            return call

        def checked(first, *args, **kwargs):
            result = call(first, *args, **kwargs)  # memory is written, as far as a kernel came
            if not self._fits(first):
                self.num_failures += 1
                raise self._error
            return result

        return checked


def add_all(engine):
    prompts = [[5, 9, 3, 20, 8] * 4, [7] * 11, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [9, 8]]
    params = [SamplingParams(max_tokens=12, ignore_eos=True, **style) for style in STYLES]
    pairs = zip(prompts, params, strict=True)
    return [request for ids, p in pairs for request in engine.add(ids, p)]


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()
    metrics = engine.metrics()
    assert metrics["num_free_blocks"] == metrics["num_blocks"]


def answers(requests):
    return [(r.finish_reason, r.output_token_ids, r.logprobs, r.prompt_logprobs) for r in requests]


@pytest.fixture(scope="module")
def wanted(make_engine):
    engine = make_engine(overlap=False, prefix_caching=False)
    requests = add_all(engine)
    run(engine)
    return answers(requests)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_forward_without_memory_is_repeated_in_smaller_steps(
    make_engine, wanted, overlap, prefix_caching, error, caplog
):
    engine = make_engine(overlap=overlap, prefix_caching=prefix_caching)
    short = ShortOfMemory(engine.runner.model, "forward", lambda b: len(b.input_ids) <= 5, error)
    engine.runner.model = short
    requests = add_all(engine)
    with caplog.at_level(logging.WARNING, logger="deepinfer_core"):
        run(engine)
    assert short.num_failures >= 3
    assert answers(requests) == wanted
    assert "memory ran out in a step of 46 tokens" in caplog.text
    assert "max_num_batched_tokens" in caplog.text


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("owner", ["model", "sampler"])
def test_logits_and_sampling_without_memory_too(make_engine, wanted, overlap, owner):
    """Also after a fork, whose samples draw together, and with counted penalties."""
    engine = make_engine(overlap=overlap)
    method = {"model": "compute_logits", "sampler": "sample"}[owner]
    short = ShortOfMemory(
        getattr(engine.runner, owner), method, lambda rows: len(rows) <= 2, MemoryError()
    )
    setattr(engine.runner, owner, short)
    requests = add_all(engine)
    run(engine)
    assert short.num_failures >= 3
    assert answers(requests) == wanted


@pytest.mark.parametrize("overlap", [False, True])
def test_changes_of_rows_that_failed_are_made_with_the_next_step(
    make_engine, wanted, overlap, monkeypatch
):
    engine = make_engine(overlap=overlap)
    start_row, calls = engine.runner.sampler.start_row, []

    def fails_at_first(start):
        calls.append(start.row)
        if len(calls) == 3:
            raise MemoryError
        start_row(start)

    monkeypatch.setattr(engine.runner.sampler, "start_row", fails_at_first)
    requests = add_all(engine)
    run(engine)
    assert calls.count(calls[0]) == 2
    assert answers(requests) == wanted


@pytest.mark.parametrize("overlap", [False, True])
def test_only_a_request_that_does_not_fit_alone_fails(make_engine, wanted, overlap):
    """Its first error names where it was, what the allocator said, and what to do."""
    engine = make_engine(overlap=overlap)
    engine.runner.model = ShortOfMemory(
        engine.runner.model,
        "forward",
        lambda batch: max(batch.attention.groups[0].seq_len_bounds) < 40,
        ERRORS[2],
    )
    (greedy,) = engine.add([4] * 60, SamplingParams(temperature=0, max_tokens=3))
    requests = add_all(engine)
    run(engine)
    assert answers(requests) == wanted
    assert greedy.finish_reason == "error"
    assert isinstance(greedy.error, RequestError)
    message = str(greedy.error)
    assert "position 39" in message
    assert "tried to allocate 99 bytes" in message
    assert "cache.memory_fraction" in message
    (late,) = engine.add([5, 9, 3, 20, 8] * 4, SamplingParams(temperature=0, max_tokens=12))
    run(engine)
    assert late.output_token_ids == wanted[0][1]


def test_any_other_error_of_a_step_still_stops_the_engine(make_engine):
    engine = make_engine()
    engine.runner.model = ShortOfMemory(
        engine.runner.model, "forward", lambda batch: False, RuntimeError("shapes differ")
    )
    add_all(engine)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(engine)
