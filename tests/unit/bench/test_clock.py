"""`StepClock`: parts that exclude each other and add up, and no trace afterwards."""

import pytest
from deepinfer_core.bench.clock import ENGINE_PARTS, MODEL_PARTS, StepClock, median_parts_ms
from deepinfer_core.bench.speed import greedy


class Ticks:
    """A clock that moves by one at each look, so that times count calls."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def serve(llm, count, num_tokens):
    prompts = [{"prompt_token_ids": [7 + i] * 5} for i in range(count)]
    return llm.generate(prompts, greedy(num_tokens), on_error="raise", progress=False)


@pytest.mark.parametrize("count", [1, 3])
def test_every_step_is_seen_with_its_requests(llm, count):
    llm.engine.reset_prefix_cache()
    with StepClock(llm.engine) as clock:
        serve(llm, count, 6)
    first, *others = clock.steps
    assert (list(first.query_lens), list(first.seq_lens)) == ([5] * count, [5] * count)
    assert len(others) == len(clock.decode_steps(count)) == 5
    assert [list(step.seq_lens) for step in others] == [[6 + i] * count for i in range(5)]
    assert clock.decode_steps(count + 1) == []


def test_parts_exclude_each_other(llm):
    """Each call of the two looks at the clock costs one tick inside and one tick outside."""
    with StepClock(llm.engine, timer=Ticks()) as clock:
        serve(llm, 1, 8)
    for step in clock.decode_steps(1)[1:-1]:
        assert set(step.parts_s) == {*MODEL_PARTS, *ENGINE_PARTS}
        # forward is entered twice: hidden states, then logits.
        assert step.parts_s["forward"] == 2
        assert all(step.parts_s[part] == 1 for part in ("schedule", "build", "commit"))
        assert step.parts_s["sampler"] == 2  # sample and count
        # submit made three timed calls, advance five: schedule, submit, commit, sample, count.
        assert step.parts_s["rows"] == 4
        assert step.parts_s["output"] == 6
        assert step.engine_s == step.total_s - 4


def test_nothing_is_left_behind(llm):
    engine, runner = llm.engine, llm.engine.runner
    owners = (engine, engine.scheduler, runner, runner.builder, runner.model, runner.sampler)
    before = [set(vars(owner)) for owner in owners]
    with pytest.raises(ZeroDivisionError), StepClock(engine):
        assert [set(vars(owner)) for owner in owners] != before
        raise ZeroDivisionError
    assert [set(vars(owner)) for owner in owners] == before


def test_medians_of_parts(llm):
    with StepClock(llm.engine, timer=Ticks()) as clock:
        serve(llm, 1, 8)
    parts = median_parts_ms(clock.decode_steps(1))
    assert parts["forward"] == 2000
    assert parts["output"] == 6000
