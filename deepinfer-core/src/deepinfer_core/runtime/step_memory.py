"""Measures how much memory the largest steps take besides weights and cache."""

from __future__ import annotations

import logging
import time
from functools import partial

from deepinfer_core.config import SchedulerConfig
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.plugin_api.device import DeviceRuntime, MeasuresMemory
from deepinfer_core.runtime.runner import ModelRunner
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import BlockUpdate, RowStart, StepPlan

logger = logging.getLogger(__name__)

SAMPLING = SamplingParams(temperature=0.8, top_p=0.9, seed=0)
"""With everything that takes memory beside the logits."""
PART = 8
"""The longest chunk is run only if this part of it is quick; else memory is taken to grow as it."""
QUICK_S = 0.5


def measure_step_bytes(
    runner: ModelRunner,
    runtime: DeviceRuntime,
    scheduler: SchedulerConfig,
    layout: KVLayout,
    max_model_len: int,
    history_len: int,
) -> int | None:
    """Run steps that are of no request: a long chunk, and one token of as many as may run.

    Args:
        runner: over a pool of any size; what the steps write goes to the null block.
        layout: of the pool.
        history_len: tokens before each chunk whose ids the model wants.

    Returns:
        None: the device cannot say, or such steps do not fit at all; the engine makes do with
        smaller ones then.
    """
    if not isinstance(runtime, MeasuresMemory):
        return None
    count = min(scheduler.max_num_batched_tokens, max_model_len)
    most = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    part = _plan(1, -(-count // PART), history_len, layout)
    try:
        runtime.peak_bytes(partial(_run, runner, part))  # kernels are compiled
        begun_s = time.perf_counter()
        taken = PART * runtime.peak_bytes(partial(_run, runner, part))
        if time.perf_counter() - begun_s < QUICK_S:
            chunk = _plan(1, count, history_len, layout)
            taken = runtime.peak_bytes(partial(_run, runner, chunk))
        tokens = _plan(most, 1, history_len, layout)
        taken = max(taken, runtime.peak_bytes(partial(_run, runner, tokens)))
    except Exception as error:
        if not runner.is_out_of_memory(error):
            raise
        logger.warning(
            "steps of %d tokens of %d requests do not fit beside the weights: %s; lower "
            "scheduler.max_num_batched_tokens or scheduler.max_num_seqs", count, most, error,
        )  # fmt: skip
        return None
    runner.clear_null_block()
    return taken


def _run(runner: ModelRunner, plan: StepPlan) -> None:
    runner.submit(plan).sample()
    for row in plan.rows:
        runner.sampler.free_row(row)


def _plan(num_rows: int, count: int, history_len: int, layout: KVLayout) -> StepPlan:
    """So many rows, each with a chunk from its start on, and a draw behind it."""
    rows = list(range(num_rows))
    return StepPlan(
        -1,
        rows=rows,
        num_computed_tokens=[0] * num_rows,
        num_scheduled_tokens=[count] * num_rows,
        token_ids=[0] * (num_rows * count),
        history_token_ids=[0] * (num_rows * history_len),
        sample_rows=rows,
        sample_sources=rows,
        sample_positions=[count] * num_rows,
        row_starts=[RowStart(row, SAMPLING, 0, 0, [0], frozenset()) for row in rows],
        block_updates=[
            BlockUpdate(index, row, first_index=0, block_ids=[0] * -(-count // group.block_size))
            for index, group in enumerate(layout.groups)
            for row in rows
        ],
    )
