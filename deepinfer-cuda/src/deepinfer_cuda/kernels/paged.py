"""Paged attention in two kernels: tiles of queries for chunks, shares of the cache for decode.

Heads that share keys are rows of one tile. A decode splits each request's cache among programs,
whose results are merged by weight (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import torch
import triton
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics_attention import (
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
    prefill_launch,
)
from deepinfer_cuda.kernels.attend import chunk_kernel
from deepinfer_cuda.kernels.decode import decode_kernel, merge_kernel
from deepinfer_cuda.kernels.limits import dtype_name, shared_bytes
from deepinfer_cuda.kernels.long_chunks import attend_long
from deepinfer_cuda.kernels.overlap import overlap
from deepinfer_cuda.kernels.tiles import Tiles, plan_tiles

MIN_LONG = 1024
"""Queries of a chunk from which copying its keys is worth it: measured on an H200."""


def plan(problem: Problem, meta: AttentionMeta) -> Tiles | None:
    """The `plan` of `attn.paged`; None where every request has one query."""
    num_q_heads, num_kv_heads = problem.dim("num_q_heads"), problem.dim("num_kv_heads")
    group = (num_q_heads or 1) // (num_kv_heads or 1)
    return _plan(meta, group, problem.dim("head_dim") or 128, problem.dtype)


def _plan(meta: AttentionMeta, group: int, head_dim: int, dtype: str) -> Tiles | None:
    if meta.max_query_len <= 1:
        return None
    limit = shared_bytes(meta.cu_seqlens_q.device)
    return plan_tiles(meta, prefill_launch(group, head_dim, dtype, limit).queries_per_tile)


def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.paged`."""
    num_tokens, num_heads, head_dim = q.shape
    o = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    if num_tokens:
        q = q if q.stride(2) == 1 else q.contiguous()
        options = (scale, window, sinks, softcap, return_lse)
        is_plain = options[1:] == (None, None, None, False) and q.dtype != torch.float32
        if not isinstance(plan, Tiles):
            plan = _plan(meta, num_heads // k_cache.shape[2], head_dim, dtype_name(q.dtype))
        if plan is None:
            _attend_decode(q, k_cache, v_cache, meta, o, lse, *options)
        elif is_plain and meta.max_query_len >= MIN_LONG:
            o = _attend_long(q, k_cache, v_cache, meta, o, lse, scale)
        else:
            _attend_chunks(q, k_cache, v_cache, meta, plan, o, lse, *options)
    return (o, lse) if return_lse else o


def _attend_long(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    o: Tensor,
    lse: Tensor,
    scale: float,
) -> Tensor:
    """Long chunks one by one, all others together."""
    if meta.num_reqs == 1:
        return attend_long(q, k_cache, v_cache, meta, 0, scale).contiguous()
    if min(meta.query_lens) < MIN_LONG:
        tiles = short_tiles(q, k_cache, meta)
        _attend_chunks(q, k_cache, v_cache, meta, tiles, o, lse, scale, None, None, None, False)
    first = 0
    for request, count in enumerate(meta.query_lens):
        rows = slice(first, first + count)
        if count >= MIN_LONG:
            o[rows] = attend_long(q[rows], k_cache, v_cache, meta, request, scale)
        first += count
    return o


def short_tiles(q: Tensor, k_cache: Tensor, meta: AttentionMeta) -> Tiles:
    """Of the short chunks of a step, once for all layers whose tiles are of one size."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    limit = shared_bytes(q.device)
    launch = prefill_launch(q.shape[1] // num_kv_heads, head_dim, dtype_name(q.dtype), limit)
    size = launch.queries_per_tile
    key = f"cuda.paged/short/{size}"
    if key not in meta.plans:
        meta.plans[key] = plan_tiles(meta, size, below=MIN_LONG)
    tiles: Tiles = meta.plans[key]
    return tiles


def _attend_chunks(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    tiles: Tiles,
    o: Tensor,
    lse: Tensor,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
    softcap: float | None,
    wants_lse: bool,
) -> None:
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group = q.shape[1] // num_kv_heads
    launch: PrefillLaunch = prefill_launch(
        group, head_dim, dtype_name(q.dtype), shared_bytes(q.device)
    )
    chunk_kernel[(len(tiles.requests), num_kv_heads)](
        q,
        k_cache,
        v_cache,
        o,
        lse,
        meta.block_tables,
        meta.cu_seqlens_q,
        meta.seq_lens,
        tiles.requests,
        tiles.firsts,
        q if sinks is None else sinks,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        v_cache.stride(0),
        meta.block_tables.stride(0),
        scale,
        softcap or 0.0,
        window or 0,
        q.shape[1],
        block_size,
        num_kv_heads * head_dim,
        HEAD_DIM=head_dim,
        GROUP=group,
        QUERIES=launch.queries_per_tile,
        ROWS=launch.rows,
        KEYS=launch.keys,
        DIMS=launch.dims,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        WANTS_LSE=wants_lse,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def _attend_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    o: Tensor,
    lse: Tensor,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
    softcap: float | None,
    wants_lse: bool,
) -> None:
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_requests, num_heads, _ = q.shape
    group = num_heads // num_kv_heads
    launch: DecodeLaunch = decode_launch(
        num_requests, num_kv_heads, group, head_dim, dtype_name(q.dtype), shared_bytes(q.device)
    )
    splits = launch.num_splits
    shape = (num_requests, num_heads, splits, head_dim) if splits > 1 else (1, 1, 1, 1)
    partial = torch.empty(shape, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    switches = {
        "HEAD_DIM": head_dim,
        "DIMS": launch.dims,
        "HAS_SINKS": sinks is not None,
        "WANTS_LSE": wants_lse,
        **overlap(q.device),
    }
    decode_kernel[(num_kv_heads // launch.heads, splits, num_requests)](
        q,
        k_cache,
        v_cache,
        o,
        lse,
        partial,
        partial_lse,
        q if sinks is None else sinks,
        meta.block_tables,
        meta.seq_lens,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        v_cache.stride(0),
        meta.block_tables.stride(0),
        scale,
        softcap or 0.0,
        window or 0,
        num_heads,
        num_kv_heads * head_dim,
        splits,
        BLOCK_SIZE=block_size,
        GROUP=group,
        HEADS=launch.heads,
        ROWS=launch.rows,
        TOKENS=launch.tokens,
        IS_SPLIT=splits > 1,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        PREFETCHED=launch.prefetched,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **switches,
    )
    if splits > 1:
        merge_kernel[(num_requests * num_heads,)](
            partial,
            partial_lse,
            q if sinks is None else sinks,
            o,
            lse,
            num_heads,
            splits,
            SPLITS=triton.next_power_of_2(splits),
            num_warps=2,
            **switches,
        )
