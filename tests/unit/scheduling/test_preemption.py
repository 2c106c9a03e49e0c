"""Preemption, pauses, prefix hits, samples that share a prompt, prompt log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.kv.layout import LayerKV, make_layout

FULL = LayerKV("full", 1, 1, 1)
HYBRID = make_layout(
    [FULL, LayerKV("window", 1, 1, 1, 6), LayerKV("window", 1, 1, 1, 6)], block_size=4
)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_steps", range(1, 8))
def test_preemption_in_flight_loses_no_ids(harness: Any, depth: int, num_steps: int) -> None:
    """Its tokens in flight are appended at their commit, and it comes back only then."""
    bench = harness(depth=depth, max_num_batched_tokens=4)
    (request,) = bench.add(list(range(7)), max_tokens=6)
    (other,) = bench.add([8, 8, 8], max_tokens=6)
    for _ in range(num_steps):
        bench.step()
    in_flight = request.num_in_flight_tokens
    known = request.num_output_tokens
    was_running = request.row >= 0 and not request.is_finished
    bench.scheduler.preempt(request)
    bench.scheduler.check_integrity()
    if was_running:
        assert request.num_computed_tokens == 0 and request.num_preemptions == 1
        assert bench.num_blocks(request) == 0
        plan = bench.scheduler.schedule() if bench.flights else None
        if plan is not None:
            assert in_flight == 0 or request.request_id not in plan.request_ids
            bench.flights.append((plan, bench.runner.submit(plan)))
        while bench.flights:
            bench.commit()
        assert request.num_output_tokens >= known + in_flight
    bench.run()
    bench.check_answers()
    assert len(request.output_token_ids) == len(other.output_token_ids) == 6


@pytest.mark.parametrize("depth", [0, 1])
def test_pausing_and_clearing_the_cache_loses_no_token(harness: Any, depth: int) -> None:
    bench = harness(depth=depth, max_num_batched_tokens=6)
    for index in range(4):
        bench.add([index] * (3 + index), max_tokens=8)
    for _ in range(12):
        bench.step()
        bench.scheduler.preempt_all()
        bench.scheduler.reset_prefix_cache()
        bench.scheduler.check_integrity()
        assert bench.scheduler.num_running == 0
    bench.run()
    bench.check_answers()
    assert all(r.num_output_tokens == 8 for r in bench.requests)


def test_preempting_what_does_not_run_does_nothing(harness: Any) -> None:
    bench = harness(max_num_seqs=1)
    (first,) = bench.add([1], max_tokens=1)
    (second,) = bench.add([2], max_tokens=1)
    bench.step()
    for request in (first, second):
        bench.scheduler.preempt(request)
        assert request.num_preemptions == 0


@pytest.mark.parametrize("layout", [None, HYBRID], ids=["full", "hybrid"])
@pytest.mark.parametrize("depth", [0, 1])
def test_prefixes_of_every_length_hit_and_answer_the_same(
    harness: Any, layout: Any, depth: int
) -> None:
    """Around the block border above all: a cached prompt still computes at least one token."""
    bench = harness(layout, num_blocks=99, depth=depth, max_num_seqs=1)
    granularity = bench.kv.layout.hit_granularity
    base = [(7 * i) % 20 for i in range(3 * granularity + 2)]
    bench.add(base, max_tokens=3)
    bench.run()
    for length in range(1, len(base) + 1):
        (request,) = bench.add(base[:length], max_tokens=3, seed=length)
        bench.run()
        assert request.num_cached_tokens == (length - 1) // granularity * granularity
    bench.check_answers()


def test_cached_tokens_are_those_of_the_prompt_at_first_admission(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([5] * 9, max_tokens=9)
    for _ in range(6):
        bench.step()
    bench.scheduler.preempt(request)
    bench.step()
    assert request.num_cached_tokens == 0
    assert bench.kv.stats().num_hit_tokens == 12
    bench.run()
    bench.check_answers()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_prompt_tokens", [3, 4, 5])
def test_samples_fork_in_the_step_that_computes_the_prompt(
    harness: Any, depth: int, num_prompt_tokens: int
) -> None:
    bench = harness(depth=depth, max_num_batched_tokens=num_prompt_tokens - 1)
    leader, *others = bench.add(list(range(num_prompt_tokens)), n=3, max_tokens=4, seed=9)
    bench.step()
    assert bench.scheduler.num_waiting == 2
    plan = bench.step()
    assert plan.request_ids == [leader.request_id]
    assert plan.sample_request_ids == [r.request_id for r in (leader, *others)]
    assert plan.sample_sources == [0, 0, 0]
    assert plan.sample_positions == [num_prompt_tokens] * 3
    assert [start.sample_index for start in plan.row_starts] == [1, 2]
    bench.run()
    bench.check_answers()
    assert len({tuple(r.output_token_ids) for r in bench.requests}) > 1
    num_copies = sum(len(plan.block_copies) for plan in bench.plans)
    assert num_copies == (0 if num_prompt_tokens == 4 else 2)
    assert sum(map(sum, (p.num_scheduled_tokens for p in bench.plans))) == num_prompt_tokens + 9


def test_a_computed_prompt_is_hittable_while_its_request_runs(harness: Any) -> None:
    bench = harness()
    bench.add(list(range(9)), max_tokens=5)
    bench.step()
    samples = bench.add(list(range(9)), max_tokens=5, n=3)
    bench.step()
    assert [request.num_cached_tokens for request in samples] == [8, 8, 8]
    bench.run()
    bench.check_answers()


def test_samples_without_a_row_wait_and_hit_the_prefix(harness: Any) -> None:
    bench = harness(max_num_seqs=2)
    samples = bench.add(list(range(9)), n=4, max_tokens=3)
    bench.step()
    assert bench.scheduler.num_running == 2 and bench.scheduler.num_waiting == 2
    bench.run()
    bench.check_answers()
    assert [r.num_cached_tokens for r in samples] == [0, 0, 8, 8]


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_leader_that_ends_early_leaves_its_samples_an_heir(harness: Any, num_steps: int) -> None:
    """They still compute the prompt once, and its log-probabilities still come."""
    bench = harness(max_num_batched_tokens=4, depth=1)
    leader, heir, *others = bench.add(list(range(10)), n=4, max_tokens=3, prompt_logprobs=0)
    for _ in range(num_steps):
        bench.step()
    bench.scheduler.abort(leader)
    bench.scheduler.abort(others[0])
    assert bench.scheduler.num_waiting == 2
    bench.run()
    bench.check_answers()
    assert [len(r.prompt_logprobs) for r in (heir, *others)] == [9, 0, 0]
    assert not heir.wants_prompt_logprobs or heir.finish_reason == "length"
    computed = sum(
        count
        for plan in bench.plans
        for owner, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True)
        if owner != leader.request_id
    )
    assert computed == 10 + 2 * 2


def test_a_preempted_leader_still_leads(harness: Any) -> None:
    bench = harness(max_num_batched_tokens=4)
    leader, *_ = bench.add(list(range(10)), n=3, max_tokens=3)
    bench.step()
    bench.scheduler.preempt(leader)
    assert bench.scheduler.num_waiting == 3
    bench.run()
    bench.check_answers()
    assert sum(len(plan.row_starts) for plan in bench.plans) == 3


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("preempt_after", [1, 2, 3, 4])
def test_prompt_logprobs_come_once_and_in_order(
    harness: Any, depth: int, preempt_after: int
) -> None:
    """Over chunks, preemptions and a cache that holds the prompt."""
    bench = harness(depth=depth, max_num_batched_tokens=4)
    bench.add(list(range(11)), max_tokens=2)
    bench.run()
    (request,) = bench.add(list(range(11)), max_tokens=4, prompt_logprobs=3)
    for _ in range(preempt_after):
        bench.step()
    bench.scheduler.preempt(request)
    bench.run()
    bench.check_answers()
    assert len(request.prompt_logprobs) == 10
    assert request.num_cached_tokens == 0


def test_delivered_prompt_logprobs_are_not_computed_again(harness: Any) -> None:
    bench = harness(max_num_batched_tokens=4)
    (request,) = bench.add(list(range(11)), max_tokens=4, prompt_logprobs=3)
    bench.step()
    bench.step()
    bench.scheduler.preempt(request)
    before = len(bench.plans)
    bench.run()
    wanted = [
        len(w.target_token_ids) for plan in bench.plans[before:] for w in plan.prompt_logprobs
    ]
    assert wanted == [2]
    assert request.prompt_logprobs and request.num_preemptions == 1


def test_a_prompt_of_one_token_has_no_prompt_logprobs(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([3], max_tokens=2, prompt_logprobs=0)
    bench.run()
    assert request.prompt_logprobs == []
    bench.check_answers()
