"""Absorbed latent attention over the paged cache: all heads read one row per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics_latent import LatentLaunch, latent_launch
from deepinfer_cuda.kernels.attend_latent import latent_kernel, merge_latents_kernel
from deepinfer_cuda.kernels.limits import dtype_name, major

MAX_PARTIAL_BYTES = 2**28
"""Of results of shares at a time; a step with more is worked off in parts."""


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """Which queries each tile of a step has."""

    queries: int
    """Of a tile at most."""
    tile_requests: Tensor
    """[N] int32"""
    tile_firsts: Tensor
    """[N] int32, the tile's first query, counted from its request's first."""


def plan(problem: Problem, meta: AttentionMeta) -> LatentPlan | None:
    """The `plan` of `attn.mla`: counts from the host, contents from the device's bounds.

    None: every request has one query. Nothing is copied and nothing waits.
    """
    return _plan(problem.dim("num_q_heads") or 1, problem.dtype, meta, invariant=False)


def plan_invariant(problem: Problem, meta: AttentionMeta) -> LatentPlan | None:
    """As `plan`, with one query to a tile."""
    return _plan(problem.dim("num_q_heads") or 1, problem.dtype, meta, invariant=True)


def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla`."""
    return _mla(q_latent, q_rope, cache, meta, scale, plan, return_lse, invariant=False)


def mla_invariant(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `mla`, with shares that follow from the query's own position: same bits in any batch."""
    return _mla(q_latent, q_rope, cache, meta, scale, plan, return_lse, invariant=True)


def _plan(num_heads: int, dtype: str, meta: AttentionMeta, *, invariant: bool) -> LatentPlan | None:
    if meta.max_query_len <= 1:
        return None
    device = meta.cu_seqlens_q.device
    modes = {"is_decode": False, "invariant": invariant}
    launch = latent_launch(0, num_heads, 1, 1, dtype, major(device), **modes)
    size = launch.queries
    num_tiles = sum(-(-count // size) for count in meta.query_lens)
    counts = (meta.cu_seqlens_q.diff() + size - 1) // size
    ends = counts.cumsum(0)
    tiles = torch.arange(num_tiles, device=device)
    requests = torch.searchsorted(ends, tiles, right=True)
    firsts = (tiles - (ends - counts)[requests]) * size
    return LatentPlan(size, requests.int(), firsts.int())


def _mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None,
    return_lse: bool,
    *,
    invariant: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    num_tokens, num_heads, rank = q_latent.shape
    tiles = plan if isinstance(plan, LatentPlan) else None
    if tiles is None and meta.max_query_len > 1:
        tiles = _plan(num_heads, dtype_name(q_latent.dtype), meta, invariant=invariant)
    o = torch.empty((num_tokens, num_heads, rank), dtype=q_latent.dtype, device=q_latent.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q_latent.device)
    if not num_tokens:
        return (o, lse) if return_lse else o
    launch = latent_launch(
        num_tokens,
        num_heads,
        rank,
        q_rope.shape[2],
        dtype_name(q_latent.dtype),
        major(q_latent.device),
        is_decode=tiles is None,
        invariant=invariant,
    )
    q_latent, q_rope = (x if x.stride(2) == 1 else x.contiguous() for x in (q_latent, q_rope))
    step = num_tokens
    if launch.num_shares > 1 and launch.queries == 1:
        step = max(1, MAX_PARTIAL_BYTES // (num_heads * launch.num_shares * rank * 4))
    for first in range(0, num_tokens, step):
        part = slice(first, min(first + step, num_tokens))
        _attend(q_latent, q_rope, cache, meta, tiles, o, lse, part, scale, launch, return_lse)
    return (o, lse) if return_lse else o


def _attend(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    tiles: LatentPlan | None,
    o: Tensor,
    lse: Tensor,
    tokens: slice,
    scale: float,
    launch: LatentLaunch,
    wants_lse: bool,
) -> None:
    """Some tokens of the step; all of them, or tiles have one query each."""
    _, num_heads, rank = q_latent.shape
    shares, first, count = launch.num_shares, tokens.start, tokens.stop - tokens.start
    out, out_lse = o, lse
    if shares > 1:
        shape = (count, num_heads, shares, rank)
        out = torch.empty(shape, dtype=torch.float32, device=o.device)
        out_lse = torch.empty(shape[:3], dtype=torch.float32, device=o.device)
    lists = (meta.seq_lens, meta.seq_lens)
    if tiles is not None:
        lists = (tiles.tile_requests, tiles.tile_firsts)
        if launch.queries == 1:
            lists = (lists[0][tokens], lists[1][tokens])
    num_tiles = count if launch.queries == 1 else len(lists[0])
    latent_kernel[(num_tiles * triton.cdiv(num_heads, launch.group), shares)](
        q_latent,
        q_rope,
        cache,
        out,
        out_lse,
        meta.block_tables,
        meta.cu_seqlens_q,
        meta.seq_lens,
        *lists,
        q_latent.stride(0),
        q_latent.stride(1),
        q_rope.stride(0),
        q_rope.stride(1),
        cache.stride(0),
        meta.block_tables.stride(0),
        scale,
        num_heads,
        meta.block_size,
        shares,
        launch.min_share,
        first,
        RANK=rank,
        ROPE=q_rope.shape[2],
        RANKS=launch.rank,
        ROPES=launch.rope,
        GROUP=launch.group,
        QUERIES=launch.queries,
        ROWS=launch.rows,
        KEYS=launch.keys,
        IS_DECODE=tiles is None,
        IS_SHARED=shares > 1,
        WANTS_LSE=wants_lse,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if shares > 1:
        merge_latents_kernel[(count * num_heads,)](
            out,
            out_lse,
            o[tokens],
            lse[tokens],
            shares,
            RANK=rank,
            RANKS=launch.rank,
            SHARES=triton.next_power_of_2(shares),
            WANTS_LSE=wants_lse,
            num_warps=4,
        )
