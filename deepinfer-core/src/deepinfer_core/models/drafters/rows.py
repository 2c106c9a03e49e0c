"""Batches of one token per request that drafting runs on, made from a step without the host.

Which row of a step is a request's last committed one is known to the device only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import slots_of, token_requests
from deepinfer_core.runtime.batch import AttentionBatch


def rows_of(attention: AttentionBatch, rows: Tensor) -> AttentionBatch:
    """The given rows [N] int64 of a step, each as the only token of its request."""

    def pick(meta: AttentionMeta) -> AttentionMeta:
        requests, starts = token_requests(meta).index_select(0, rows), meta.window_starts
        picked = replace(
            meta,
            block_tables=meta.block_tables.index_select(0, requests),
            slot_mapping=meta.slot_mapping.index_select(0, rows),
            window_starts=None if starts is None else starts.index_select(0, requests),
        )
        return _at(picked, meta.positions.index_select(0, rows), meta.max_seq_len)

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
        moved = replace(meta, slot_mapping=torch.where(is_missing, -1, slots).int())
        return _at(moved, positions, meta.max_seq_len + 1)

    return _each_group(attention, move)


def _each_group(
    attention: AttentionBatch, change: Callable[[AttentionMeta], AttentionMeta]
) -> AttentionBatch:
    return replace(attention, groups=[change(meta) for meta in attention.groups])


def _at(meta: AttentionMeta, positions: Tensor, bound: int) -> AttentionMeta:
    """N single tokens at positions [N]; nothing is planned for them yet."""
    count = len(positions)
    return replace(
        meta,
        cu_seqlens_q=torch.arange(count + 1, dtype=torch.int32, device=positions.device),
        seq_lens=(positions + 1).int(),
        positions=positions,
        query_lens=[1] * count,
        seq_len_bounds=[bound] * count,
        plans={},
    )
