"""Attention to latents.

The vendor's operators want latents and rotated keys in caches of their own, ours lie in one row:
so the rows of a step are gathered first, which copies what is read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor

from deepinfer_ascend.kernels.fused import attend
from deepinfer_ascend.kernels.groups import Attended, Group, attend_by_group
from deepinfer_ascend.kernels.pages import gather_blocks, repage
from deepinfer_ascend.kernels.sparse_flash import sparse_flash

MAX_EXPANDED = 2**27
"""Numbers of keys and values that are expanded at once."""


def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: list[Group] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla`, for rows that one head of the operator holds."""
    assert plan is not None
    rank = q_latent.shape[2]
    q = torch.cat([q_latent, q_rope], dim=2)

    def attend_group(group: Group) -> Attended:
        rows = gather_blocks(cache, group.tables).unsqueeze(2)
        o, lse = attend(
            group.take(q),
            rows,
            rows,
            group.hidden(),
            group.bounds,
            scale,
            num_kv_heads=1,
            return_lse=return_lse,
        )
        return o[..., :rank], lse

    o = q_latent.new_empty(q_latent.shape)
    return attend_by_group(plan, o, attend_group, return_lse=return_lse)


def mla_by_rows(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla`, by the operator of sparse attention, which takes
    lengths from the device, to all rows; no normaliser is claimed."""
    del plan
    assert not return_lse
    if not q_latent.numel():
        return torch.empty_like(q_latent)
    num_blocks = max(1, -(-meta.max_seq_len // meta.block_size))
    pages, tables = repage(cache, meta.block_tables[:, :num_blocks])
    rows = torch.arange(tables.shape[1] * pages.shape[1], device=pages.device)
    indices = torch.where(rows <= meta.positions.unsqueeze(1), rows, -1).int()
    return sparse_flash(
        (q_latent, q_rope),
        torch.split(pages, [q_latent.shape[2], q_rope.shape[2]], dim=-1),
        indices,
        scale,
        is_causal=True,
        block_table=tables,
        # TND: ends of the requests' rows, without the leading zero.
        actual_seq_lengths_query=meta.cu_seqlens_q[1:].contiguous(),
        actual_seq_lengths_kv=meta.seq_lens,
    )


def mla_prefill(
    q: Tensor,
    cache: Tensor,
    weight: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: list[Group] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla_prefill`: keys and values of some heads at a time."""
    assert plan is not None
    rank = weight.shape[2]
    nope_dim = q.shape[2] - (cache.shape[2] - rank)
    value_dim = weight.shape[1] - nope_dim
    width = max(q.shape[2], value_dim)

    def attend_group(group: Group) -> Attended:
        # Garbage behind the last key may expand to infinity, which no weight of zero hides.
        is_beyond = group.hidden()[:, -1].unsqueeze(2)
        rows = gather_blocks(cache, group.tables).masked_fill(is_beyond, 0)
        queries = group.take(q)
        step = max(1, MAX_EXPANDED // max(1, rows.shape[0] * rows.shape[1] * width))
        pieces = zip(torch.split(queries, step, dim=2), torch.split(weight, step), strict=True)
        parts = [_attend_heads(*piece, rows, group, scale, return_lse) for piece in pieces]
        lses = [lse for _, lse in parts if lse is not None]
        return torch.cat([o for o, _ in parts], 2), torch.cat(lses, 2) if lses else None

    o = q.new_empty(*q.shape[:2], value_dim)
    return attend_by_group(plan, o, attend_group, return_lse=return_lse)


def _attend_heads(
    q: Tensor, weight: Tensor, rows: Tensor, group: Group, scale: float, return_lse: bool
) -> Attended:
    """Queries [B, S, h, Dn + Dr] of h heads to rows [B, K, R + Dr]."""
    num_heads, both_dims, rank = weight.shape
    shared = rows[..., None, rank:].expand(-1, -1, num_heads, -1)
    nope_dim = q.shape[3] - shared.shape[3]
    expanded = F.linear(rows[..., :rank], weight.reshape(-1, rank))
    expanded = expanded.view(*rows.shape[:2], num_heads, both_dims)
    k = torch.cat([expanded[..., :nope_dim], shared], dim=3)
    v = expanded[..., nope_dim:]
    value_dim, width = v.shape[3], max(k.shape[3], v.shape[3])
    # Keys and values have one size for the operator.
    q, k, v = (F.pad(part, (0, width - part.shape[3])) for part in (q, k, v))
    o, lse = attend(
        q,
        k.contiguous(),
        v.contiguous(),
        group.hidden(),
        group.bounds,
        scale,
        num_kv_heads=num_heads,
        return_lse=return_lse,
    )
    return o[..., :value_dim], lse
