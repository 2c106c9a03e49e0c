"""Batches of one token per request that drafting runs on, made from a step without the host.

Which row of a step is a request's last committed one is known to the device only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import slots_of, token_requests
from deepinfer_core.runtime.batch import AttentionBatch


def rows_of(attention: AttentionBatch, rows: Tensor) -> AttentionBatch:
    """The given rows [N] int64 of a step, each as the only token of its request."""

    def pick(meta: AttentionMeta) -> AttentionMeta:
        requests = token_requests(meta).index_select(0, rows)
        return _single(
            meta,
            meta.positions.index_select(0, rows),
            meta.block_tables.index_select(0, requests),
            meta.slot_mapping.index_select(0, rows),
            meta.max_seq_len,
        )

    return _each_group(attention, pick)


def following(attention: AttentionBatch) -> AttentionBatch:
    """The position after that of each of N single tokens.

    Nothing is written where a block table does not reach.
    """

    def move(meta: AttentionMeta) -> AttentionMeta:
        positions = meta.positions + 1
        columns = positions // meta.block_size
        width = meta.block_tables.shape[1]
        column = columns.clamp(max=width - 1).unsqueeze(1)
        is_missing = (columns >= width) | (meta.block_tables.gather(1, column).squeeze(1) == 0)
        slots = slots_of(meta, token_requests(meta), positions)
        slots = torch.where(is_missing, -1, slots).int()
        return _single(meta, positions, meta.block_tables, slots, meta.max_seq_len + 1)

    return _each_group(attention, move)


def _each_group(
    attention: AttentionBatch, change: Callable[[AttentionMeta], AttentionMeta]
) -> AttentionBatch:
    groups = [change(meta) for meta in attention.groups]
    return AttentionBatch(groups, attention.cache_groups, attention.caches)


def _single(
    meta: AttentionMeta, positions: Tensor, block_tables: Tensor, slots: Tensor, bound: int
) -> AttentionMeta:
    count = len(positions)
    return AttentionMeta(
        cu_seqlens_q=torch.arange(count + 1, dtype=torch.int32, device=positions.device),
        seq_lens=(positions + 1).int(),
        block_tables=block_tables,
        slot_mapping=slots,
        positions=positions,
        block_size=meta.block_size,
        query_lens=[1] * count,
        seq_len_bounds=[bound] * count,
    )
