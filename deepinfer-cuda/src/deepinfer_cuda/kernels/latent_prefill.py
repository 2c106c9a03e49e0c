"""Expanded latent attention: keys and values of some heads at a time, from latents side by side.

The products are torch's, and long chunks go through torch's fused attention where it takes such
heads. How many heads are expanded at once is bounded by memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics_latent import ExpandedLaunch, expanded_launch, heads_at_a_time
from deepinfer_cuda.kernels.attend_expanded import expanded_kernel, gather_kernel
from deepinfer_cuda.kernels.fused import is_fused
from deepinfer_cuda.kernels.join_keys import join_keys
from deepinfer_cuda.kernels.limits import dtype_name, shared_bytes
from deepinfer_cuda.kernels.long_chunks import attend_parts

MIN_FUSED = 2048
"""Queries of a chunk from which joining keys for torch's fused attention is worth it: measured on
an H200."""


@dataclass(frozen=True, slots=True)
class ExpandedPlan:
    """Where a step's latents lie, and which queries each tile has; for all layers."""

    slots: Tensor
    """[N] int32, of the cache: request by request; -1 = none, behind the last request."""
    ends: Tensor
    """[B] int64: where each request's rows end."""
    tile_requests: Tensor
    """[tiles] int32"""
    tile_firsts: Tensor
    """[tiles] int32, the tile's first query, counted from its request's first."""


def plan(problem: Problem, meta: AttentionMeta) -> ExpandedPlan:
    """The `plan` of `attn.mla_prefill`: counts from the host's bounds, contents from the device."""
    device = meta.seq_lens.device
    if not meta.num_reqs:
        none = torch.empty(0, dtype=torch.int32, device=device)
        return ExpandedPlan(none, none.long(), none, none)
    launch = expanded_launch(1, 1, 1, problem.dtype, shared_bytes(device))
    ends = meta.seq_lens.cumsum(0)
    rows = torch.arange(sum(meta.seq_len_bounds), device=device)
    requests = torch.searchsorted(ends, rows, right=True).clamp_(max=meta.num_reqs - 1)
    positions = rows - (ends - meta.seq_lens)[requests]
    columns = (positions // meta.block_size).clamp_(max=meta.block_tables.shape[1] - 1)
    slots = meta.block_tables[requests, columns] * meta.block_size
    slots += positions % meta.block_size
    slots = torch.where(rows < ends[-1], slots, -1).int()

    size = launch.rows
    num_tiles = sum(-(-count // size) for count in meta.query_lens)
    counts = (meta.cu_seqlens_q.diff() + size - 1) // size
    tile_ends = counts.cumsum(0)
    # From the last tile on: a request's last tiles see most keys, and had better not start last.
    tiles = torch.arange(num_tiles - 1, -1, -1, device=device)
    owners = torch.searchsorted(tile_ends, tiles, right=True)
    firsts = (tiles - (tile_ends - counts)[owners]) * size
    return ExpandedPlan(slots, ends, owners.int(), firsts.int())


def mla_prefill(
    q: Tensor,
    cache: Tensor,
    weight: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla_prefill`."""
    num_tokens, num_heads, _ = q.shape
    rank, rope_dim = weight.shape[2], cache.shape[2] - weight.shape[2]
    nope_dim = q.shape[2] - rope_dim
    value_dim = weight.shape[1] - nope_dim
    o = torch.empty((num_tokens, num_heads, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    if not num_tokens:
        return (o, lse) if return_lse else o
    q = q if q.stride(2) == 1 else q.contiguous()
    launch = expanded_launch(
        nope_dim, rope_dim, value_dim, dtype_name(q.dtype), shared_bytes(q.device)
    )
    steps = plan if isinstance(plan, ExpandedPlan) else _plan(q, meta)
    rows = _gather(cache, steps.slots)
    latents = rows[:, :rank]
    group = heads_at_a_time(len(rows), num_heads, weight.shape[1] * q.element_size())
    for first in range(0, num_heads, group):
        matrices = weight[first : first + group]
        kv = torch.mm(latents, matrices.reshape(-1, rank).t())
        heads = slice(first, first + len(matrices))
        if return_lse or not _attend_fused(q[:, heads], kv, rows, meta, o[:, heads], scale):
            _attend(q, kv, rows, meta, steps, o, lse, first, rank, scale, launch, return_lse)
    return (o, lse) if return_lse else o


def _plan(q: Tensor, meta: AttentionMeta) -> ExpandedPlan:
    return plan(Problem("attn.mla_prefill", dtype_name(q.dtype)), meta)


def _gather(cache: Tensor, slots: Tensor) -> Tensor:
    """Rows [N, R + Dr] of these slots; zeros where there is none."""
    _, block_size, width = cache.shape
    rows = torch.empty((len(slots), width), dtype=cache.dtype, device=cache.device)
    gather_kernel[(len(slots),)](
        cache,
        rows,
        slots,
        cache.stride(0),
        block_size,
        WIDTH=width,
        DIMS=triton.next_power_of_2(width),
        num_warps=2,
    )
    return rows


def _attend_fused(
    q: Tensor, kv: Tensor, rows: Tensor, meta: AttentionMeta, o: Tensor, scale: float
) -> bool:
    """Request by request, some heads of long chunks; False: nothing was done.

    The bounds of such requests are exact: a chunk of a prompt has no drafts before it.
    """
    if q.dtype == torch.float32 or min(meta.query_lens) < MIN_FUSED:
        return False
    num_heads, value_dim = q.shape[1], o.shape[2]
    kv = kv.view(len(kv), num_heads, -1)
    nope_dim = kv.shape[2] - value_dim
    rope = rows[:, rows.shape[1] - (q.shape[2] - nope_dim) :]
    keys, values = (
        x.transpose(0, 1).unsqueeze(0) for x in (join_keys(kv, rope, nope_dim), kv[..., nope_dim:])
    )
    queries = q.transpose(0, 1).unsqueeze(0)
    if not is_fused(queries, keys, values):
        return False
    first = row = 0
    for count, length in zip(meta.query_lens, meta.seq_len_bounds, strict=True):
        last, row_end = first + count, row + length
        own = (keys[:, :, row:row_end], values[:, :, row:row_end])
        o[first:last] = attend_parts(queries[:, :, first:last], *own, scale)
        first, row = last, row_end
    return True


def _attend(
    q: Tensor,
    kv: Tensor,
    rows: Tensor,
    meta: AttentionMeta,
    steps: ExpandedPlan,
    o: Tensor,
    lse: Tensor,
    first_head: int,
    rank: int,
    scale: float,
    launch: ExpandedLaunch,
    wants_lse: bool,
) -> None:
    """The heads from `first_head` on whose keys and values are in `kv`."""
    value_dim, rope_dim = o.shape[2], rows.shape[1] - rank
    nope_dim = q.shape[2] - rope_dim
    num_heads = kv.shape[1] // (nope_dim + value_dim)
    expanded_kernel[(len(steps.tile_requests), num_heads)](
        q,
        kv,
        rows,
        o,
        lse,
        meta.cu_seqlens_q,
        meta.seq_lens,
        steps.ends,
        steps.tile_requests,
        steps.tile_firsts,
        q.stride(0),
        q.stride(1),
        kv.stride(0),
        scale,
        o.shape[1],
        first_head,
        RANK=rank,
        NOPE=nope_dim,
        ROPE=rope_dim,
        VALUE=value_dim,
        NOPES=launch.nope,
        ROPES=launch.rope,
        VALUES=launch.value,
        ROWS=launch.rows,
        KEYS=launch.keys,
        WANTS_LSE=wants_lse,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
