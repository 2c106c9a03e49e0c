"""Puts the device side together: pool, cache manager, sampler, token pool, runner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from deepinfer_core.config import CacheConfig, SchedulerConfig
from deepinfer_core.kv.layout import KVLayout, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.models.interface import history_len_of
from deepinfer_core.runtime.drafting import DeviceDrafting
from deepinfer_core.runtime.graph_setup import GraphLimits, make_graphs
from deepinfer_core.runtime.kv_cache import MIN_BLOCKS, allocate_pool, choose_num_blocks
from deepinfer_core.runtime.runner import ModelRunner
from deepinfer_core.runtime.step_costs import measure_draft_costs, measure_step_costs
from deepinfer_core.runtime.step_memory import measure_step_bytes
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.sampler import Sampler

if TYPE_CHECKING:
    from deepinfer_core.models.causal import CausalModel
    from deepinfer_core.models.drafters.interface import Drafter
    from deepinfer_core.ops.table import OpTable
    from deepinfer_core.plugin_api import DeviceRuntime
    from deepinfer_core.speculative.budget import DraftCosts, StepCosts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """What the engine drives, and the manager of the blocks that the runner writes to."""

    runner: ModelRunner
    kv: KVManager
    history_len: int
    """Tokens before each chunk whose ids the model wants."""
    runtime: DeviceRuntime

    def step_costs(self) -> StepCosts:
        """Run steps of several sizes; only before there are requests."""
        return measure_step_costs(self.runner, self.runtime, history_len=self.history_len)

    def draft_costs(self, num_drafts: int) -> DraftCosts:
        """The same with the drafter, which there is."""
        return measure_draft_costs(
            self.runner, self.runtime, history_len=self.history_len, num_drafts=num_drafts
        )


class StepLimits(NamedTuple):
    """What steps must have room for."""

    scheduler: SchedulerConfig
    max_model_len: int
    num_drafts: int = 0
    """Most guesses of one request."""


def assemble(
    model: CausalModel,
    ops: OpTable,
    runtime: DeviceRuntime,
    cache: CacheConfig,
    *,
    limits: StepLimits,
    logits_stages: Mapping[str, Any],
    drafter: Drafter | None = None,
    cache_dir: str | None = None,
) -> DeviceSide:
    """Size and allocate the KV pool and build the runner over it; freezes the op table.

    Args:
        model: with its weights in place, so that free memory is what is left for the pool.
        drafter: beside the model, in place too; None: nobody guesses on the device.
        cache_dir: as in `device.cache_dir`.

    Raises:
        ConfigError: the model allows no bounded replay.
        OutOfDeviceMemoryError: the pool does not fit.
    """
    device = torch.device(runtime.torch_device)
    max_num_seqs, max_model_len = limits.scheduler.max_num_seqs, limits.max_model_len
    layout = _layout_of(model, drafter, cache, limits.num_drafts)
    sampler = Sampler(
        ops,
        max_num_seqs=max_num_seqs,
        vocab_size=model.vocab_size,
        device=device,
        custom_stages=logits_stages,
    )
    token_pool, history_len = TokenPool(max_num_seqs, device), history_len_of(model)
    copy_blocks = ops.bind("kv.copy_blocks", dtype=str(model.dtype).removeprefix("torch."))

    def runner_over(num_blocks: int) -> ModelRunner:
        return ModelRunner(
            model,
            sampler,
            token_pool,
            runtime,
            pool=allocate_pool(layout, num_blocks, device),
            layout=layout,
            copy_blocks=copy_blocks,
            max_num_seqs=max_num_seqs,
        )

    step_bytes = None
    if cache.num_blocks is None:
        step_bytes = measure_step_bytes(
            runner_over(MIN_BLOCKS), runtime, limits.scheduler, layout, max_model_len, history_len
        )
    num_blocks = choose_num_blocks(layout, cache, runtime.memory_info()[0], step_bytes)
    runner = runner_over(num_blocks)
    recorded = GraphLimits(max_num_seqs, max_model_len, history_len)
    runner.graphs = make_graphs(model, ops, runtime, runner.builder, recorded, cache_dir)
    if drafter is not None:
        runner.add_drafting(DeviceDrafting(drafter, model, sampler), limits.num_drafts)
    ops.freeze()
    kv = KVManager(layout, num_blocks, prefix_caching=cache.prefix_caching)
    return DeviceSide(runner, kv, history_len, runtime)


def _layout_of(
    model: CausalModel, drafter: Drafter | None, cache: CacheConfig, num_drafts: int
) -> KVLayout:
    dtype = str(model.dtype).removeprefix("torch.")
    kinds = [*model.layer_kv(), *(drafter.layer_kv() if drafter is not None else ())]
    return make_layout(
        # Blocks are named by what they store, so none may leave its dtype to the model.
        [replace(kind, dtype=kind.dtype or dtype) for kind in kinds],
        block_size=cache.block_size,
        bounded_replay=cache.bounded_replay,
        max_rollback=num_drafts,
    )
