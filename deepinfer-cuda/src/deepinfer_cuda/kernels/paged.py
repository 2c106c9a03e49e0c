"""Paged attention in two kernels: tiles of queries for chunks, shares of the cache for decode.

Heads that share keys are rows of one tile. A decode splits each request's cache among programs,
whose results are merged by weight (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics import (
    LARGE_SHARED_BYTES,
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
    prefill_launch,
)
from deepinfer_cuda.kernels.attend import chunk_kernel, decode_kernel, merge_kernel
from deepinfer_cuda.kernels.long_chunks import attend_long

MIN_LONG = 1024
"""Queries of a chunk from which copying its keys is worth it: measured on an H200."""


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """Which queries each tile of a step has; None: every request has one query."""

    tile_requests: Tensor
    """[N] int32"""
    tile_firsts: Tensor
    """[N] int32, the tile's first query, counted from its request's first."""


def plan(problem: Problem, meta: AttentionMeta) -> PagedPlan | None:
    """The `plan` of `attn.paged`: counts from the host, contents from the device's bounds.

    Nothing is copied and nothing waits, so it can be recorded.
    """
    if meta.max_query_len <= 1:
        return None
    num_q_heads, num_kv_heads = problem.dim("num_q_heads"), problem.dim("num_kv_heads")
    group = (num_q_heads or 1) // (num_kv_heads or 1)
    shared_bytes = _shared_bytes(meta.cu_seqlens_q.device)
    head_dim = problem.dim("head_dim") or 128
    size = prefill_launch(group, head_dim, problem.dtype, shared_bytes).queries_per_tile
    num_tiles = sum(-(-count // size) for count in meta.query_lens)
    counts = (meta.cu_seqlens_q.diff() + size - 1) // size
    ends = counts.cumsum(0)
    # From the last tile on: a request's last tiles see most keys, and had better not start last.
    tiles = torch.arange(num_tiles - 1, -1, -1, device=ends.device)
    requests = torch.searchsorted(ends, tiles, right=True)
    firsts = (tiles - (ends - counts)[requests]) * size
    return PagedPlan(requests.int(), firsts.int())


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
        if not isinstance(plan, PagedPlan):
            _attend_decode(q, k_cache, v_cache, meta, o, lse, *options)
        elif is_plain and all(count >= MIN_LONG for count in meta.query_lens):
            _attend_long(q, k_cache, v_cache, meta, o, scale)
        else:
            _attend_chunks(q, k_cache, v_cache, meta, plan, o, lse, *options)
    return (o, lse) if return_lse else o


def _attend_long(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta, o: Tensor, scale: float
) -> None:
    first = 0
    for request, count in enumerate(meta.query_lens):
        rows = slice(first, first + count)
        o[rows] = attend_long(q[rows], k_cache, v_cache, meta, request, scale)
        first += count


def _attend_chunks(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    tiles: PagedPlan,
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
    launch: PrefillLaunch = prefill_launch(group, head_dim, _name(q.dtype), _shared_bytes(q.device))
    chunk_kernel[(len(tiles.tile_requests), num_kv_heads)](
        q,
        k_cache,
        v_cache,
        o,
        lse,
        meta.block_tables,
        meta.cu_seqlens_q,
        meta.seq_lens,
        tiles.tile_requests,
        tiles.tile_firsts,
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
        num_requests * num_kv_heads, group, head_dim, _name(q.dtype)
    )
    splits = launch.num_splits
    shape = (num_requests, num_heads, splits, head_dim)
    partial = torch.empty(shape, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    decode_kernel[(num_requests, num_kv_heads, splits)](
        q,
        k_cache,
        v_cache,
        partial,
        partial_lse,
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
        block_size,
        num_kv_heads * head_dim,
        splits,
        HEAD_DIM=head_dim,
        GROUP=group,
        ROWS=launch.rows,
        KEYS=launch.keys,
        DIMS=launch.dims,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    merge_kernel[(num_requests * num_heads,)](
        partial,
        partial_lse,
        q if sinks is None else sinks,
        o,
        lse,
        num_heads,
        splits,
        HEAD_DIM=head_dim,
        DIMS=launch.dims,
        SPLITS=triton.next_power_of_2(splits),
        HAS_SINKS=sinks is not None,
        WANTS_LSE=wants_lse,
        num_warps=2,
    )


@cache
def _shared_bytes(device: torch.device) -> int:
    """Of shared memory that a device has for one program."""
    if device.type == "cpu":  # Triton's interpreter
        return LARGE_SHARED_BYTES
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
