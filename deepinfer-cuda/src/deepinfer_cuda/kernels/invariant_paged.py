"""Paged attention whose bits for a query do not depend on batch, chunking or a cached prefix.

One kernel with one shape of tiles for chunks and for decode. See `lanes`.
"""

from __future__ import annotations

from typing import Any

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics_attention import LANES, LanesLaunch, are_lanes_shared, lanes_launch
from deepinfer_cuda.kernels.lanes import lanes_kernel, merge_lanes_kernel
from deepinfer_cuda.kernels.limits import dtype_name, shared_bytes
from deepinfer_cuda.kernels.tiles import Tiles, plan_tiles


def plan(problem: Problem, meta: AttentionMeta) -> Tiles:
    """The `plan` of this kernel. Nothing is copied and nothing waits."""
    num_q_heads, num_kv_heads = problem.dim("num_q_heads") or 1, problem.dim("num_kv_heads") or 1
    limit = shared_bytes(meta.cu_seqlens_q.device)
    head_dim = problem.dim("head_dim") or 128
    launch = lanes_launch(num_q_heads // num_kv_heads, head_dim, problem.dtype, limit)
    return plan_tiles(meta, launch.queries_per_tile)


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
    num_kv_heads = k_cache.shape[2]
    group, limit = num_heads // num_kv_heads, shared_bytes(q.device)
    launch = lanes_launch(group, head_dim, dtype_name(q.dtype), limit)
    tiles = plan if isinstance(plan, Tiles) else plan_tiles(meta, launch.queries_per_tile)
    o = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    if num_tokens:
        q = q if q.stride(2) == 1 else q.contiguous()
        switches: dict[str, Any] = {
            "LANES": LANES,
            "HEAD_DIM": head_dim,
            "DIMS": launch.dims,
            "HAS_SINKS": sinks is not None,
            "WANTS_LSE": return_lse,
            "enable_fp_fusion": False,
        }
        options = (scale, window, q if sinks is None else sinks, softcap)
        _attend(q, k_cache, v_cache, meta, tiles, launch, o, lse, options, switches)
    return (o, lse) if return_lse else o


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    tiles: Tiles,
    launch: LanesLaunch,
    o: Tensor,
    lse: Tensor,
    options: tuple[float, int | None, Tensor, float | None],
    switches: dict[str, Any],
) -> None:
    scale, window, sinks, softcap = options
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_tokens, num_heads, _ = q.shape
    num_tiles = len(tiles.requests)
    is_shared = are_lanes_shared(num_tiles * num_kv_heads, num_tokens * num_heads * launch.dims)
    shape = (num_tokens, num_heads, LANES) if is_shared else (1, 1, 1)
    partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
    peaks, totals = torch.empty((2, *shape), dtype=torch.float32, device=q.device)
    partials = (partial, peaks, totals)
    lanes_kernel[(num_kv_heads, num_tiles, LANES if is_shared else 1)](
        q,
        k_cache,
        v_cache,
        o,
        lse,
        *partials,
        meta.block_tables,
        meta.cu_seqlens_q,
        meta.seq_lens,
        tiles.requests,
        tiles.firsts,
        sinks,
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
        GROUP=num_heads // num_kv_heads,
        QUERIES=launch.queries_per_tile,
        ROWS=launch.rows,
        KEYS=launch.keys,
        IS_SHARED=is_shared,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **switches,
    )
    if is_shared:
        merge_lanes_kernel[(num_tokens * num_heads,)](
            o, lse, *partials, sinks, num_heads, num_warps=1, **switches
        )
