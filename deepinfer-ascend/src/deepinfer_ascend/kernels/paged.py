"""Attention over the paged cache."""

from __future__ import annotations

import torch
from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor

from deepinfer_ascend.kernels.fused import attend
from deepinfer_ascend.kernels.groups import Attended, Group, attend_by_group
from deepinfer_ascend.kernels.pages import as_pages, gather_blocks, is_countable

BLOCK_UNIT, DECODE_BLOCK_UNIT = 128, 16
"""Blocks are read where they lie if they hold a multiple of so many tokens."""


def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    plan: list[Group] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.paged`; neither sinks nor softcap are claimed."""
    assert plan is not None and sinks is None and softcap is None

    def attend_group(group: Group) -> Attended:
        k, v, where = _keys_and_values(k_cache, v_cache, group)
        return attend(
            group.take(q),
            k,
            v,
            group.hidden(window),
            group.bounds,
            scale,
            num_kv_heads=k_cache.shape[2],
            return_lse=return_lse,
            **where,
        )

    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    return attend_by_group(plan, o, attend_group, return_lse=return_lse)


def _keys_and_values(
    k_cache: Tensor, v_cache: Tensor, group: Group
) -> tuple[Tensor, Tensor, dict[str, object]]:
    """Where they lie, with what the operator needs to find them there; or gathered."""
    size = k_cache.shape[1]
    unit = DECODE_BLOCK_UNIT if group.num_queries == 1 else BLOCK_UNIT
    keys, values = as_pages(k_cache), as_pages(v_cache)
    is_read_in_place = (
        size % unit == 0
        and keys is not None
        and values is not None
        and keys.step == values.step
        and is_countable(keys)
    )
    if keys is None or values is None or not is_read_in_place:
        k, v = (gather_blocks(cache, group.tables) for cache in (k_cache, v_cache))
        return k, v, {}
    where = {"block_table": group.tables_of(keys.step), "block_size": size}
    return keys.cache.flatten(2), values.cache.flatten(2), where
