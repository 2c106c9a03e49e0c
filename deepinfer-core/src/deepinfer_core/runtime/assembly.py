"""Puts the device side together: pool, cache manager, sampler, token pool, runner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.config import CacheConfig
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.interface import history_len_of
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.graph_setup import GraphLimits, make_graphs
from deepinfer_core.runtime.kv_cache import allocate_pool, choose_num_blocks
from deepinfer_core.runtime.runner import ModelRunner
from deepinfer_core.runtime.step_costs import measure_step_costs
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.sampler import Sampler

if TYPE_CHECKING:
    from deepinfer_core.plugin_api import DeviceRuntime
    from deepinfer_core.speculative.budget import StepCosts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """What the engine drives, and the manager of the blocks that the runner writes to."""

    runner: ModelRunner
    kv: KVManager
    history_len: int
    """Tokens before each chunk whose ids the model wants."""
    measure_step_costs: Callable[[], StepCosts]
    """Run steps of several sizes; only before there are requests."""


def assemble(
    model: CausalModel,
    ops: OpTable,
    runtime: DeviceRuntime,
    cache: CacheConfig,
    *,
    max_num_seqs: int,
    max_model_len: int,
    logits_stages: Mapping[str, Any],
    cache_dir: str | None = None,
) -> DeviceSide:
    """Size and allocate the KV pool and build the runner over it; freezes the op table.

    Args:
        model: with its weights in place, so that free memory is what is left for the pool.
        cache_dir: as in `device.cache_dir`.

    Raises:
        ConfigError: the model allows no bounded replay.
        OutOfDeviceMemoryError: the pool does not fit.
    """
    device = torch.device(runtime.torch_device)
    dtype = str(model.dtype).removeprefix("torch.")
    # Blocks are named by what they store, so none may leave its dtype to the model.
    layer_kvs = [replace(kind, dtype=kind.dtype or dtype) for kind in model.layer_kv()]
    layout = make_layout(
        layer_kvs, block_size=cache.block_size, bounded_replay=cache.bounded_replay
    )
    free_bytes, _ = runtime.memory_info()
    num_blocks = choose_num_blocks(
        layout,
        num_blocks=cache.num_blocks,
        memory_fraction=cache.memory_fraction,
        free_bytes=free_bytes,
    )
    sampler = Sampler(
        ops,
        max_num_seqs=max_num_seqs,
        vocab_size=model.vocab_size,
        device=device,
        custom_stages=logits_stages,
    )
    runner = ModelRunner(
        model,
        sampler,
        TokenPool(max_num_seqs, device),
        runtime,
        pool=allocate_pool(layout, num_blocks, device),
        layout=layout,
        copy_blocks=ops.bind("kv.copy_blocks", dtype=dtype),
        max_num_seqs=max_num_seqs,
    )
    history_len = history_len_of(model)
    limits = GraphLimits(max_num_seqs, max_model_len, history_len)
    runner.graphs = make_graphs(model, ops, runtime, runner.builder, limits, cache_dir)
    ops.freeze()
    kv = KVManager(layout, num_blocks, prefix_caching=cache.prefix_caching)
    measure = partial(measure_step_costs, runner, runtime, history_len=history_len)
    return DeviceSide(runner, kv, history_len, measure)
