"""Attention over the paged cache, by the fused operator for inference.

The operator wants lengths on the host, and the host knows upper bounds only, since drafts may be
in flight. So it reads up to the bounds, and a mask that is made on the device from the positions
hides what is beyond. Requests with equally many queries are served in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import batch_of
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_ascend.kernels.pages import as_pages, gather_blocks, is_countable

BLOCK_UNIT, DECODE_BLOCK_UNIT = 128, 16
"""Blocks are read where they lie if they hold a multiple of so many tokens."""
MAX_MASK_BYTES = 2**27
"""Of one call: longer chunks are attended to in pieces."""


@dataclass(slots=True)
class Group:
    """The requests of a batch that have equally many queries."""

    rows: Tensor | None
    """[T'] of their tokens; None: all of the batch in order."""
    meta: AttentionMeta
    num_queries: int
    tables: Tensor
    """[B, n] int32, up to the longest bound."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """Window -> [B, num_queries, keys] bool, True where hidden."""

    @property
    def bounds(self) -> list[int]:
        return list(self.meta.seq_len_bounds)

    def mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            num_keys = self.tables.shape[1] * self.meta.block_size
            keys = torch.arange(num_keys, device=self.tables.device)
            positions = self.meta.positions.view(-1, self.num_queries, 1)
            hidden = keys > positions
            if window is not None:
                hidden |= keys <= positions - window
            self.masks[window] = hidden
        return self.masks[window]


def plan(problem: Problem, meta: AttentionMeta) -> list[Group]:
    """The batch by number of queries; shared by the layers of a step."""
    del problem
    members: dict[int, list[int]] = {}
    for request, count in enumerate(meta.query_lens):
        members.setdefault(count, []).append(request)
    return [
        piece
        for count, requests in members.items()
        if count
        for piece in _pieces(meta, count, requests)
    ]


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
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    for group in plan:
        queries = q if group.rows is None else q.index_select(0, group.rows)
        part, part_lse = _attend(queries, k_cache, v_cache, group, scale, window, return_lse)
        if group.rows is None:
            o, lse = part, part_lse
        else:
            o.index_copy_(0, group.rows, part)
            if return_lse:
                lse.index_copy_(0, group.rows, part_lse)
    return (o, lse) if return_lse else o


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    group: Group,
    scale: float,
    window: int | None,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    """o [T', H, D] and lse [T', H], which has no meaning unless it is asked for."""
    num_tokens, num_heads, _ = q.shape
    mask = group.mask(window)
    k, v, where = _keys_and_values(k_cache, v_cache, group)
    o, lse = torch.ops.npu.npu_fused_infer_attention_score_v2(
        q.contiguous().view(-1, group.num_queries, *q.shape[1:]),
        k,
        v,
        atten_mask=mask.unsqueeze(1),
        actual_seq_kvlen=group.bounds,
        num_query_heads=num_heads,
        num_key_value_heads=k_cache.shape[2],
        softmax_scale=scale,
        input_layout="BSND",
        return_softmax_lse=return_lse,
        **where,
    )
    # LAYOUT: normalisers come as [B, H, queries, 1].
    lse = lse.squeeze(-1).transpose(1, 2).reshape(num_tokens, num_heads) if return_lse else lse
    return o.view(num_tokens, num_heads, -1), lse


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
    where = {"block_table": group.tables * keys.step, "block_size": size}
    return keys.cache.flatten(2), values.cache.flatten(2), where


def _pieces(meta: AttentionMeta, count: int, requests: Sequence[int]) -> list[Group]:
    """One group, or for masks that would be large, one for each request and stretch of queries."""
    bound = max(meta.seq_len_bounds[request] for request in requests)
    num_blocks = max(1, -(-bound // meta.block_size))
    if len(requests) * count * num_blocks * meta.block_size <= MAX_MASK_BYTES:
        rows, part = (None, meta) if len(requests) == meta.num_reqs else batch_of(meta, requests)
        return [Group(rows, part, count, part.block_tables[:, :num_blocks].contiguous())]
    if len(requests) > 1:
        return [piece for request in requests for piece in _pieces(meta, count, [request])]
    rows, part = batch_of(meta, requests)
    tables = part.block_tables[:, :num_blocks].contiguous()
    length = max(1, MAX_MASK_BYTES // (num_blocks * meta.block_size))
    return [
        Group(rows[first : first + length], _stretch(part, first, length), last - first, tables)
        for first in range(0, count, length)
        for last in (min(first + length, count),)
    ]


def _stretch(meta: AttentionMeta, first: int, length: int) -> AttentionMeta:
    """Some queries of one request; of the meta only what a group reads is cut."""
    positions = meta.positions[first : first + length]
    return AttentionMeta(
        cu_seqlens_q=meta.cu_seqlens_q,
        seq_lens=meta.seq_lens,
        block_tables=meta.block_tables,
        slot_mapping=meta.slot_mapping,
        positions=positions,
        block_size=meta.block_size,
        query_lens=[len(positions)],
        seq_len_bounds=meta.seq_len_bounds,
    )
