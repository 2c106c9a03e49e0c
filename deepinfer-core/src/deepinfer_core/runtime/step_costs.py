"""Measures what a step costs by the number of its tokens, before there are any requests."""

from __future__ import annotations

import time

from deepinfer_core.plugin_api.device import DeviceRuntime
from deepinfer_core.runtime.runner import ModelRunner
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, RowStart, StepPlan
from deepinfer_core.speculative.budget import DraftCosts, StepCosts

NUM_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Where kernels change their ways, costs jump."""
MAX_S = 3.0
"""Time to spend; a large model on a slow machine is measured at fewer points."""
NUM_TURNS = 3
"""After one to warm up; the quickest counts."""


def measure_step_costs(
    runner: ModelRunner, runtime: DeviceRuntime, *, history_len: int
) -> StepCosts:
    """Run steps of several sizes that are of no request, and write into the null block.

    Args:
        history_len: tokens before each chunk whose ids the model wants.
    """
    begun_s = time.perf_counter()
    counts: list[int] = []
    seconds: list[float] = []
    for count in NUM_TOKENS:
        if time.perf_counter() - begun_s > MAX_S:
            break
        plan = _plan(count, history_len)
        turns = [_time_step(runner, runtime, plan) for _ in range(1 + NUM_TURNS)]
        counts.append(count)
        # More tokens never cost less; where they seem to, that is noise.
        seconds.append(max(min(turns[1:]), *seconds, 1e-9))
    runner.clear_null_block()
    return StepCosts(tuple(counts), tuple(seconds))


def measure_draft_costs(
    runner: ModelRunner, runtime: DeviceRuntime, *, history_len: int, num_drafts: int
) -> DraftCosts:
    """Run steps of one token with and without a drafter behind them, as `measure_step_costs`.

    Args:
        num_drafts: most tokens of one draft.
    """
    params = SamplingParams(temperature=0)
    plan = _plan(1, history_len)
    plan.row_starts = [RowStart(0, params, 0, 0, [0], frozenset())]
    plain_s = _time_turns(runner, runtime, plan)
    plan.following_token_ids = [UNKNOWN_TOKEN_ID]
    observing_s = _time_turns(runner, runtime, plan)
    plan.num_to_draft = {0: 1}
    one_s = _time_turns(runner, runtime, plan)
    plan.num_to_draft = {0: num_drafts}
    all_s = _time_turns(runner, runtime, plan)
    runner.sampler.free_row(0)
    runner.clear_null_block()
    observe_s = max(observing_s - plain_s, 0.0)
    next_s = max(all_s - one_s, 0.0) / max(1, num_drafts - 1)
    return DraftCosts(observe_s, max(one_s - observing_s, 0.0), next_s)


def _time_turns(runner: ModelRunner, runtime: DeviceRuntime, plan: StepPlan) -> float:
    """Forward, sampling and drafting; the quickest turn."""
    turns = []
    for _ in range(1 + NUM_TURNS):
        begun_s = time.perf_counter()
        runner.submit(plan).sample()
        runtime.synchronize()  # SYNC: nothing is served yet
        turns.append(time.perf_counter() - begun_s)
    return min(turns[1:])


def _plan(count: int, history_len: int) -> StepPlan:
    """One chunk that draws behind each of its tokens."""
    return StepPlan(
        -1,
        rows=[0],
        num_computed_tokens=[0],
        num_scheduled_tokens=[count],
        token_ids=[0] * count,
        history_token_ids=[0] * history_len,
        sample_rows=[0],
        sample_sources=[0],
        sample_positions=[1],
        num_drafts={0: count - 1} if count > 1 else {},
    )


def _time_step(runner: ModelRunner, runtime: DeviceRuntime, plan: StepPlan) -> float:
    begun_s = time.perf_counter()
    runner.submit(plan)
    runtime.synchronize()  # SYNC: nothing is served yet
    return time.perf_counter() - begun_s
