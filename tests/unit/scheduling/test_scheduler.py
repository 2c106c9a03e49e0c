"""Who runs, who waits, and what a plan says. Blocks hold 4 tokens unless a test says otherwise."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from deepinfer_core.errors import ConfigError, EngineError, PromptTooLongError, RequestError
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, StepOutput
from deepinfer_core.scheduling.scheduler import Scheduler


def scheduled(plan: Any) -> dict[int, int]:
    return dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True))


def test_a_prompt_is_computed_in_chunks_and_drawn_from_at_its_end(harness: Any) -> None:
    bench = harness(max_num_batched_tokens=5)
    (request,) = bench.add(list(range(12)), max_tokens=2)
    plans = [bench.step() for _ in range(3)]
    assert [(p.num_computed_tokens, p.num_scheduled_tokens) for p in plans] == [
        ([0], [5]),
        ([5], [5]),
        ([10], [2]),
    ]
    assert [p.sample_rows for p in plans] == [[], [], [request.row]]
    assert plans[0].row_starts[0].prompt_token_ids == request.prompt_token_ids
    assert plans[2].sample_positions == [12]
    bench.run()
    bench.check_answers()


def test_a_token_never_starves_behind_a_chunk(harness: Any) -> None:
    """An older, long prompt leaves one token of the budget to each later running request."""
    bench = harness(max_num_batched_tokens=8)
    young = [bench.add([i], max_tokens=9)[0] for i in range(3)]
    bench.step()
    (old,) = bench.request(list(range(40)), max_tokens=2)
    old.request_id = -1  # arrived before all of them, and was preempted
    bench.requests.append(old)
    bench.scheduler.add(old)
    bench.step()
    assert bench.scheduler.num_running == 4
    assert scheduled(bench.step()) == {old.request_id: 5, **{r.request_id: 1 for r in young}}
    bench.run()


def test_first_come_is_first_served_even_if_a_later_one_would_fit(harness: Any) -> None:
    bench = harness(num_blocks=10, max_num_batched_tokens=100)
    bench.add(list(range(20)), max_tokens=8)
    (big,) = bench.add(list(range(50, 70)), max_tokens=2)
    (small,) = bench.add([1, 2], max_tokens=2)
    assert len(bench.step().rows) == 1
    assert bench.scheduler.num_waiting == 2
    bench.run()
    bench.check_answers()
    assert bench.finished.index(big) < bench.finished.index(small)


def test_priority_goes_first_and_takes_blocks_of_the_less_urgent(harness: Any) -> None:
    bench = harness(num_blocks=10, max_num_batched_tokens=100, policy="priority", depth=1)
    (lazy,) = bench.add(list(range(20)), max_tokens=12, priority=5)
    (equal,) = bench.add(list(range(50, 70)), max_tokens=2, priority=5)
    bench.step()
    bench.step()
    (urgent,) = bench.add(list(range(30, 50)), max_tokens=2, priority=1)
    assert scheduled(bench.step()) == {urgent.request_id: 20}
    assert lazy.num_preemptions == 1
    bench.run()
    bench.check_answers()
    assert bench.finished == [urgent, lazy, equal]


def test_nobody_is_ousted_in_vain(harness: Any) -> None:
    """Preempting all that are less urgent would still not make room, so they run on."""
    bench = harness(num_blocks=10, max_num_batched_tokens=100, policy="priority")
    bench.add(list(range(12)), max_tokens=12, priority=1)
    (lazy,) = bench.add(list(range(50, 58)), max_tokens=4, priority=5)
    bench.step()
    bench.add(list(range(30, 62)), max_tokens=2, priority=2)
    bench.step()
    assert lazy.num_preemptions == 0
    bench.run()
    bench.check_answers()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_priority_takes_a_row_when_all_are_taken(harness: Any, depth: int) -> None:
    """Of the least urgent, at most one for one; who lost it starts anew with what it has."""
    bench = harness(max_num_seqs=2, policy="priority", depth=depth)
    (least,) = bench.add([1, 2, 3], max_tokens=9, priority=9)
    (lazy,) = bench.add([4, 5, 6], max_tokens=9, priority=5)
    for _ in range(3):
        bench.step()
    (urgent,) = bench.add([7, 8], max_tokens=3, priority=1)
    for _ in range(1 + 2 * depth):
        bench.step()
    assert urgent.row >= 0
    assert least.row == -1
    bench.run()
    bench.check_answers()
    assert bench.finished == [urgent, lazy, least]
    assert (least.num_preemptions, lazy.num_preemptions) == (1, 0)
    assert least.num_cached_tokens == 0


def test_a_row_of_a_preempted_request_goes_first(harness: Any) -> None:
    bench = harness(max_num_seqs=2, num_blocks=7, policy="priority")
    bench.add([4] * 12, max_tokens=8, priority=2)
    (paused,) = bench.add([5] * 8, max_tokens=8, priority=5)
    while not paused.num_preemptions:
        bench.step()
    assert paused.row >= 0
    (urgent,) = bench.add([7], max_tokens=2, priority=1)
    bench.step()
    assert urgent.row >= 0 and paused.row == -1 and paused.num_preemptions == 1
    bench.run()
    bench.check_answers()


def test_no_row_is_taken_from_an_equal_or_for_one_that_would_not_fit(harness: Any) -> None:
    bench = harness(max_num_seqs=2, num_blocks=10, policy="priority")
    (first,) = bench.add(list(range(12)), max_tokens=6, priority=1)
    (lazy,) = bench.add([3] * 4, max_tokens=6, priority=5)
    bench.step()
    (equal,) = bench.add([4] * 4, max_tokens=2, priority=5)
    bench.step()
    assert equal.row == -1
    bench.add(list(range(30, 62)), max_tokens=2, priority=2)
    bench.step()
    assert first.row >= 0 and lazy.row >= 0
    bench.run()
    bench.check_answers()


def test_blocks_that_samples_share_are_gained_once(harness: Any) -> None:
    """Two samples of 12 tokens hold 3 blocks together; counted twice, there seemed to be room."""
    bench = harness(num_blocks=10, max_num_batched_tokens=100, policy="priority")
    bench.add(list(range(6)), max_tokens=2, priority=1)
    lazy = bench.add(list(range(50, 62)), max_tokens=8, n=2, priority=5)
    bench.step()
    assert bench.kv.pool.num_free_blocks == 4
    bench.add(list(range(20, 52)), max_tokens=1, priority=2)
    bench.step()
    assert [sample.num_preemptions for sample in lazy] == [0, 0]
    bench.run()
    bench.check_answers()


def test_what_an_urgent_prompt_shares_with_those_it_ousts_is_not_counted_twice(
    harness: Any,
) -> None:
    bench = harness(num_blocks=10, max_num_batched_tokens=100, policy="priority")
    bench.add(list(range(12)), max_tokens=5, priority=1)
    (lazy,) = bench.add(list(range(50, 62)), max_tokens=4, priority=5)
    bench.step()
    bench.add([*range(50, 62), *range(16)], max_tokens=1, priority=2)
    bench.step()
    assert lazy.num_preemptions == 0
    bench.run()
    bench.check_answers()


def test_an_urgent_request_is_not_held_up_by_a_long_prompt(harness: Any) -> None:
    bench = harness(num_blocks=99, max_num_batched_tokens=8, policy="priority")
    (long,) = bench.add(list(range(80)), max_tokens=2, priority=5)
    bench.step()
    (urgent,) = bench.add([1, 2, 3], max_tokens=2, priority=1)
    assert scheduled(bench.step()) == {urgent.request_id: 3, long.request_id: 5}
    bench.run()
    bench.check_answers()


def test_an_urgent_long_prompt_leaves_each_running_request_its_token(harness: Any) -> None:
    bench = harness(num_blocks=99, max_num_batched_tokens=8, policy="priority")
    running = [bench.add([i], max_tokens=9, priority=5)[0] for i in range(2)]
    bench.step()
    (urgent,) = bench.add(list(range(40)), max_tokens=2, priority=1)
    for _ in range(3):
        counts = scheduled(bench.step())
        assert counts == {urgent.request_id: 6, **{r.request_id: 1 for r in running}}
    bench.run()
    bench.check_answers()


def test_nobody_overtakes_a_victim_whose_tokens_are_in_flight(harness: Any) -> None:
    bench = harness(num_blocks=7, max_num_batched_tokens=100, max_num_seqs=3, depth=1)
    first, victim = (bench.add([i] * 8, max_tokens=12)[0] for i in range(2))
    while bench.kv.pool.num_free_blocks:
        bench.step()
    (small,) = bench.add([9], max_tokens=30)
    while not victim.num_preemptions:
        bench.step()
    assert bench.kv.pool.num_free_blocks >= 2
    assert small.row == -1
    bench.run()
    bench.check_answers()
    assert first.num_preemptions == 0


def test_the_last_in_order_is_preempted_when_blocks_run_out(harness: Any) -> None:
    bench = harness(num_blocks=7, max_num_batched_tokens=100)
    first, second = (bench.add([i] * 8, max_tokens=12)[0] for i in range(2))
    bench.run()
    bench.check_answers()
    assert first.num_preemptions == 0 and second.num_preemptions >= 1
    assert bench.finished == [first, second]


def test_a_chunk_shrinks_before_anybody_is_preempted(harness: Any) -> None:
    """A window group holds a whole chunk while it is written; a small pool needs small chunks."""
    layout = make_layout([LayerKV("window", 1, 1, 1, 5)], block_size=4)
    bench = harness(layout, num_blocks=6, max_num_batched_tokens=64)
    (request,) = bench.add(list(range(60)), max_tokens=3)
    bench.run()
    bench.check_answers()
    assert request.num_preemptions == 0
    assert max(bench.plans[0].num_scheduled_tokens) <= 20


def test_a_preempted_request_keeps_its_row(harness: Any) -> None:
    """And a request without one does not stand in its way: only it can free a row."""
    bench = harness(max_num_seqs=2)
    older, younger = (bench.add([i, i], max_tokens=6)[0] for i in range(2))
    bench.step()
    rows = older.row, younger.row
    bench.scheduler.preempt(younger)
    bench.scheduler.preempt(older)
    (rowless,) = bench.request([9, 9], max_tokens=2)
    rowless.request_id = -1  # goes before both
    bench.requests.append(rowless)
    bench.scheduler.add(rowless)
    bench.step()
    assert (older.row, younger.row) == rows
    assert bench.scheduler.num_running == 2 and bench.scheduler.num_waiting == 1
    bench.run()
    bench.check_answers()


def test_rows_are_handed_back_and_out_again(harness: Any) -> None:
    bench = harness(max_num_seqs=1)
    bench.add([1], max_tokens=1)
    (second,) = bench.add([2], max_tokens=1)
    first_plan, second_plan = bench.step(), bench.step()
    assert first_plan.row_frees == [] and first_plan.row_starts[0].row == 0
    assert second_plan.row_frees == [0] and second_plan.row_starts[0].row == 0
    bench.run()
    assert second.row == -1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_exactly_max_tokens_are_drawn(harness: Any, depth: int) -> None:
    """A limit is known ahead, so no step is launched beyond it."""
    bench = harness(depth=depth)
    for max_tokens in (1, 2, 5):
        bench.add([3, 4, 5], max_tokens=max_tokens, seed=max_tokens)
    bench.run()
    bench.check_answers()
    assert sum(len(plan.sample_rows) for plan in bench.plans) == 8


def test_tokens_in_flight_are_unknown_to_the_plan(harness: Any) -> None:
    bench = harness(depth=1)
    (request,) = bench.add([3, 4, 5], max_tokens=4)
    bench.step()
    plan = bench.step()
    assert plan.token_ids == [UNKNOWN_TOKEN_ID]
    assert (plan.num_computed_tokens, plan.sample_positions) == ([3], [4])
    assert request.num_tokens == 5 and request.num_in_flight_tokens == 1
    bench.run()


def test_nothing_is_launched_while_the_last_token_is_in_flight(harness: Any) -> None:
    bench = harness(depth=1)
    bench.add([3], max_tokens=1)
    assert bench.step() is not None
    assert bench.scheduler.schedule() is None
    assert bench.scheduler.has_unfinished
    bench.run()
    assert not bench.scheduler.has_unfinished


def test_a_request_that_outgrows_the_pool_ends_with_both_numbers(harness: Any) -> None:
    bench = harness(num_blocks=4)
    assert bench.scheduler.max_tokens_of_pool == 12
    (grows,) = bench.add(list(range(9)), max_tokens=50, stop_token_ids=frozenset())
    (too_long,) = bench.add(list(range(13)), max_tokens=2)
    (fine,) = bench.add([7], max_tokens=3)
    bench.run()
    assert [r.finish_reason for r in (grows, too_long, fine)] == ["error", "error", "length"]
    for request in (grows, too_long):
        assert isinstance(request.error, RequestError)
        assert "at most 12 tokens" in str(request.error)
        assert "needs 13" in str(request.error)
    assert grows.num_output_tokens == 4
    bench.check_answers()


def test_a_lone_request_waits_for_blocks_of_one_that_just_ended(harness: Any) -> None:
    """Blocks of a void row come free when its step settles; that is no reason to fail."""
    bench = harness(num_blocks=6, depth=1, max_num_batched_tokens=100)
    (gone,) = bench.add(list(range(8)), max_tokens=8)
    (request,) = bench.add(list(range(30, 38)), max_tokens=12)
    bench.step()
    bench.step()
    bench.scheduler.abort(gone)
    bench.run()
    assert request.finish_reason == "length"
    bench.check_answers()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error"), [([], 3, RequestError), ([1, 2, 3], 0, PromptTooLongError)]
)
def test_requests_that_cannot_run_are_refused(
    harness: Any, prompt: list[int], max_tokens: int, error: type[Exception]
) -> None:
    bench = harness()
    (request,) = bench.request(prompt, max_tokens=1)
    request.max_total_tokens = len(prompt) + max_tokens
    with pytest.raises(error):
        bench.scheduler.add(request)
    assert not bench.scheduler.has_unfinished


def test_a_request_is_added_once(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([1], max_tokens=1)
    with pytest.raises(RequestError, match="request 0 was added before"):
        bench.scheduler.add(request)
    bench.run()
    with pytest.raises(RequestError, match="request 0 was added before"):
        bench.scheduler.add(request)


def test_a_refused_follower_leaves_nothing_behind(harness: Any) -> None:
    bench = harness()
    (known,) = bench.add([1], max_tokens=1)
    leader, follower = bench.request([1, 2], n=2, max_tokens=2)
    follower.request_id = known.request_id
    with pytest.raises(RequestError, match="request 0 was added before"):
        bench.scheduler.add(leader)
    assert bench.scheduler.num_waiting == 1
    bench.run()


def test_unknown_policy(harness: Any) -> None:
    with pytest.raises(ConfigError, match="allowed: fcfs, priority"):
        harness(policy="lifo")


def test_steps_settle_in_order_and_in_full(harness: Any) -> None:
    bench = harness(depth=1)
    bench.add([1, 2], max_tokens=5)
    bench.step()
    second = bench.scheduler.schedule()
    (first, output) = bench.flights[0]
    with pytest.raises(EngineError, match="step 1 is not the oldest"):
        bench.scheduler.commit(second, output)
    with pytest.raises(EngineError, match="step 0 sampled 1 rows, the output has 2"):
        bench.scheduler.commit(first, StepOutput([[1], [2]]))
    bench.scheduler.commit(first, output)
    with pytest.raises(EngineError, match="step 0 is not the oldest"):
        bench.scheduler.commit(first, output)


def count_calls(num_waiting: int, harness: Any) -> list[int]:
    layout = make_layout([LayerKV("full", 1, 1, 1)], block_size=4)
    kv = KVManager(layout, 64)
    scheduler = Scheduler(kv, max_num_seqs=4, max_num_batched_tokens=64, policy="priority")
    factory = harness()
    for index in range(4 + num_waiting):
        scheduler.add(factory.request([index], max_tokens=30, priority=index % 3)[0])
    counts = []
    gc.collect()  # finalisers that happen to run in a step would be counted

    def profile(frame: Any, event: str, argument: Any) -> None:
        counts[-1] += event in ("call", "c_call")

    for _ in range(12):
        counts.append(0)
        sys.setprofile(profile)
        plan = scheduler.schedule()
        result = scheduler.commit(plan, StepOutput([[9] for _ in plan.sample_rows]))
        sys.setprofile(None)
        assert len(result.updated) == 4
    return counts


def test_a_step_does_not_cost_more_with_more_waiting(harness: Any) -> None:
    assert count_calls(10, harness) == count_calls(3000, harness)


def test_requests_aborted_while_waiting_leave_no_garbage(harness: Any) -> None:
    bench = harness(max_num_seqs=1, max_num_batched_tokens=1)
    blocker, *others = (bench.add([1, 2, 3], max_tokens=9)[0] for _ in range(200))
    bench.step()
    for request in others[:-1]:
        bench.scheduler.abort(request)
    queue = bench.scheduler._roster.waiting
    assert len(queue) == 1 and len(queue._unseated) < 10
    bench.run()
    assert blocker.finish_reason == others[-1].finish_reason == "length"
