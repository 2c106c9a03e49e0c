"""How requests end: stops, limits, aborts, errors, and what is in flight when they do."""

from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import RequestError
from deepinfer_core.scheduling.plan import StepOutput, TokenLogprobs

EOS, STOP_ID = 0, 1


def logprob(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0, 1)


def commit_ids(bench: Any, *token_ids: int) -> Any:
    """Launch a step of one request and let it settle with these ids."""
    plan = bench.scheduler.schedule()
    logprobs = [[logprob(token_id) for token_id in token_ids]]
    result = bench.scheduler.commit(plan, StepOutput([list(token_ids)], logprobs))
    bench.scheduler.check_integrity()
    return result


@pytest.mark.parametrize(
    ("drawn", "kept", "reason", "stop_reason"),
    [
        ([5, 6], 2, None, None),
        ([5, STOP_ID, 6], 2, "stop", STOP_ID),
        ([EOS, STOP_ID], 1, "stop", None),
        ([5, 6, 7, STOP_ID], 4, "stop", STOP_ID),
        ([5, 6, 7, 8, STOP_ID], 4, "length", None),
        ([5, 6, 7, 8], 4, "length", None),
        ([STOP_ID], 1, "stop", STOP_ID),
    ],
)
def test_the_earliest_event_ends_a_request_and_everything_is_cut_there(
    harness: Any, drawn: list[int], kept: int, reason: str | None, stop_reason: int | None
) -> None:
    """Also in the middle of several tokens; ids and log-probabilities end at the same point."""
    bench = harness()
    (request,) = bench.request(
        [3, 4], max_tokens=4, stop_token_ids=frozenset({EOS, STOP_ID}), logprobs=0
    )
    bench.scheduler.add(request)
    result = commit_ids(bench, *drawn)
    assert request.output_token_ids == drawn[:kept]
    assert [entry.token_id for entry in request.logprobs] == drawn[:kept]
    assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
    assert result.updated == [request]
    assert result.finished == ([request] if reason else [])


def test_several_tokens_in_one_step_are_computed_in_the_next(harness: Any) -> None:
    bench = harness()
    (request,) = bench.request([3, 4], max_tokens=9)
    bench.scheduler.add(request)
    commit_ids(bench, 5, 6, 7)
    plan = bench.scheduler.schedule()
    assert plan.token_ids == [5, 6, 7]
    assert (plan.num_computed_tokens, plan.sample_positions) == ([2], [5])


def test_times_are_taken(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([3, 4], max_tokens=3)
    bench.step()
    first = request.first_token_time_s
    bench.run()
    assert first == request.first_token_time_s <= request.finish_time_s


def test_a_void_row_holds_its_row_and_blocks_until_it_settles(harness: Any) -> None:
    """The step in flight still writes there; its output is dropped."""
    bench = harness(depth=1)
    (request,) = bench.add([3, 4, 5, 6, 7], max_tokens=9)
    bench.step()
    bench.step()
    assert request.num_output_tokens == 1
    bench.scheduler.abort(request)
    assert bench.num_blocks(request) == 2 and request.row == 0
    assert bench.scheduler.num_running == bench.scheduler.num_waiting == 0
    assert bench.scheduler.has_unfinished
    bench.step()
    assert bench.num_blocks(request) == 0 and request.row == -1
    assert request.num_output_tokens == 1
    bench.run()
    bench.check_answers()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_abort_at_any_time_any_number_of_times(harness: Any, depth: int, num_steps: int) -> None:
    """Before allocation, in the prompt, in flight, and after the end."""
    bench = harness(depth=depth, max_num_batched_tokens=4)
    (request,) = bench.add(list(range(6)), max_tokens=5)
    (other,) = bench.add([9], max_tokens=5)
    for _ in range(num_steps):
        bench.step()
    for _ in range(3):
        bench.scheduler.abort(request)
    assert request.finish_reason == "abort"
    bench.run()
    bench.scheduler.abort(request)
    bench.scheduler.abort(other)
    assert other.finish_reason == "length"
    bench.check_idle()
    bench.check_answers()


def test_abort_of_a_stranger_does_nothing(harness: Any) -> None:
    bench = harness()
    (stranger,) = bench.request([1], max_tokens=1)
    bench.scheduler.abort(stranger)
    assert not stranger.is_finished and not bench.scheduler.has_unfinished


def test_abort_can_carry_a_reason(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([1], max_tokens=2)
    error = RequestError("why")
    bench.scheduler.abort(request, finish_reason="error", error=error)
    assert (request.finish_reason, request.error) == ("error", error)
    assert bench.scheduler.take_finished() == [request]
    assert bench.scheduler.take_finished() == []


def test_abort_while_preempted_tokens_are_in_flight(harness: Any) -> None:
    bench = harness(depth=1)
    (request,) = bench.add([1, 2], max_tokens=5)
    bench.step()
    bench.step()
    bench.scheduler.preempt(request)
    bench.scheduler.abort(request)
    bench.scheduler.check_integrity()
    bench.run()
    assert request.num_output_tokens == 1
    bench.check_answers()


def test_a_row_error_ends_that_request_only(harness: Any) -> None:
    bench = harness(depth=1)
    requests = [bench.add([i, i], max_tokens=12, bad_words="x")[0] for i in range(4)]
    bench.run()
    bench.check_answers()
    failed = [request for request in requests if request.finish_reason == "error"]
    assert 0 < len(failed) < 4, "the seed must show both"
    assert all(str(request.error) == "nothing left to draw" for request in failed)


def finish_after(bench: Any, request: Any, num_tokens: int) -> None:
    while request.num_output_tokens < num_tokens:
        assert not request.is_finished
        bench.step()


@pytest.mark.parametrize("depth", [0, 1])
def test_finish_cuts_ids_and_logprobs(harness: Any, depth: int) -> None:
    bench = harness(depth=depth)
    (request,) = bench.add([3, 5], max_tokens=9, logprobs=0)
    finish_after(bench, request, 3)
    bench.scheduler.finish(request, num_output_tokens=2, stop_reason="END")
    assert (request.finish_reason, request.stop_reason) == ("stop", "END")
    assert len(request.output_token_ids) == len(request.logprobs) == 2
    bench.run()
    assert len(request.output_token_ids) == 2
    assert bench.finished == [request]


@pytest.mark.parametrize(
    ("ended_by", "keep", "wins"),
    [("length", 3, True), ("length", 2, True), ("stop", 3, False), ("stop", 2, True)],
)
def test_finish_against_an_end_in_the_same_step(
    harness: Any, ended_by: str, keep: int, wins: bool
) -> None:
    """The earlier event wins; at the same token a stop id wins over a string, that over a limit."""
    bench = harness()
    (request,) = bench.request([3], max_tokens=3, stop_token_ids=frozenset({STOP_ID}))
    bench.scheduler.add(request)
    commit_ids(bench, 5, 6, STOP_ID if ended_by == "stop" else 7)
    assert request.finish_reason == ended_by
    bench.scheduler.finish(request, num_output_tokens=keep, stop_reason="END")
    assert request.finish_reason == "stop"
    assert request.stop_reason == ("END" if wins else STOP_ID)
    assert request.num_output_tokens == keep


def test_finish_does_not_revive_an_aborted_request(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([3], max_tokens=9)
    finish_after(bench, request, 2)
    bench.scheduler.abort(request)
    bench.scheduler.finish(request, num_output_tokens=1, stop_reason="END")
    assert request.finish_reason == "abort" and request.num_output_tokens == 2


def test_a_full_block_is_cached_by_the_step_that_ends_its_request(harness: Any) -> None:
    bench = harness()
    (request,) = bench.add([3, 4], max_tokens=3)
    bench.run()
    assert request.num_tokens == 5
    (again,) = bench.add([*request.prompt_token_ids, *request.output_token_ids], max_tokens=1)
    bench.run()
    assert again.num_cached_tokens == 4
