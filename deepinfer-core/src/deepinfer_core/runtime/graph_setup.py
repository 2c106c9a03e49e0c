"""`make_graphs`: whether steps are recorded, under which name, and which at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from deepinfer_core import __version__
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.ops.registry import plan_key
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch_builder import BatchBuilder
from deepinfer_core.runtime.graphs import DecodeGraphs, ops_that_need_the_host
from deepinfer_core.runtime.recorded_sizes import RecordedSizes
from deepinfer_core.scheduling.plan import StepPlan

if TYPE_CHECKING:
    from deepinfer_core.plugin_api import DeviceRuntime

logger = logging.getLogger(__name__)


class GraphLimits(NamedTuple):
    """What recorded steps must be able to hold."""

    max_num_seqs: int
    max_len: int
    """Tokens of a request."""
    history_len: int
    """Tokens before each chunk whose ids the model wants."""


def make_graphs(
    model: CausalModel,
    ops: OpTable,
    runtime: DeviceRuntime,
    builder: BatchBuilder,
    limits: GraphLimits,
    cache_dir: str | None,
) -> DecodeGraphs | None:
    """Make them, and record ahead what earlier runs of the same setup recorded.

    Args:
        builder: of the runner that will launch them.
        cache_dir: as in `device.cache_dir`.

    Returns:
        None: the device has no graphs, or some kernel needs the host.
    """
    if not runtime.supports_graphs:
        return None
    if unsafe := ops_that_need_the_host(ops.choices()):
        logger.info("steps are launched op by op: %s cannot be recorded", ", ".join(unsafe))
        return None
    setup = {
        "versions": {"deepinfer": __version__, "torch": torch.__version__},
        "device": runtime.kind,
        "model": type(model).__name__,
        "caches": [repr(kind) for kind in model.layer_kv()],
        "ops": sorted({plan_key(choice.provider, choice.problem) for choice in ops.choices()}),
        "limits": limits._asdict(),
    }
    graphs = DecodeGraphs(
        model,
        runtime,
        max_num_seqs=limits.max_num_seqs,
        max_len=limits.max_len,
        earlier=RecordedSizes(cache_dir, setup),
        find_unsafe=lambda: ops_that_need_the_host(ops.choices()),
    )
    graphs.record_ahead(builder.build(_any_step(limits.history_len)).batch)
    return graphs


def _any_step(history_len: int) -> StepPlan:
    """One token of no request."""
    return StepPlan(
        -1,
        rows=[0],
        num_computed_tokens=[0],
        num_scheduled_tokens=[1],
        token_ids=[0],
        history_token_ids=[0] * history_len,
    )
