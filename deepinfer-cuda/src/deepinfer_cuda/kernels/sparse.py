"""Attention to chosen rows of one or two caches, plain or records."""

from __future__ import annotations

import torch
import triton
from deepinfer_core.ops.records import Record
from torch import Tensor

from deepinfer_cuda.heuristics_latent import RowsLaunch, rows_launch
from deepinfer_cuda.kernels.attend_rows import merge_rows_kernel, rows_kernel
from deepinfer_cuda.kernels.limits import dtype_name, major
from deepinfer_cuda.kernels.records import layout_of

MAX_PARTIAL_BYTES = 2**28
"""Of results of shares at a time; a step with more is worked off in parts."""


def merge_warps(num_shares: int) -> int:
    """Of a program that merges so many."""
    return 4 if num_shares <= 16 else 8


def sparse_mla(
    q: Tensor,
    cache: Tensor,
    rows: Tensor,
    scale: float,
    value_dim: int,
    sinks: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_rows: Tensor | None = None,
    return_lse: bool = False,
    record: Record | None = None,
    extra_record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.sparse_mla`."""
    first = (cache, rows, record)
    second = None
    if extra_cache is not None and extra_rows is not None:
        second = (extra_cache, extra_rows, extra_record)
    return _sparse(q, first, second, scale, value_dim, sinks, return_lse, invariant=False)


def sparse_mla_invariant(
    q: Tensor,
    cache: Tensor,
    rows: Tensor,
    scale: float,
    value_dim: int,
    sinks: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_rows: Tensor | None = None,
    return_lse: bool = False,
    record: Record | None = None,
    extra_record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `sparse_mla`, with shares that follow from a query's own lists: same bits in any batch."""
    first = (cache, rows, record)
    second = None
    if extra_cache is not None and extra_rows is not None:
        second = (extra_cache, extra_rows, extra_record)
    return _sparse(q, first, second, scale, value_dim, sinks, return_lse, invariant=True)


Source = tuple[Tensor, Tensor, Record | None]


def _sparse(
    q: Tensor,
    first: Source,
    second: Source | None,
    scale: float,
    value_dim: int,
    sinks: Tensor | None,
    return_lse: bool,
    *,
    invariant: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    num_tokens, num_heads, head_dim = q.shape
    o = torch.empty((num_tokens, num_heads, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    if num_tokens:
        q = q if q.stride(2) == 1 else q.contiguous()
        sizes = (num_heads, head_dim, value_dim, dtype_name(q.dtype), major(q.device))
        is_coded = any(source[2] is not None for source in (first, second) if source)
        launch = rows_launch(num_tokens, *sizes, invariant=invariant, is_coded=is_coded)
        step = max(1, MAX_PARTIAL_BYTES // (num_heads * launch.num_shares * value_dim * 4))
        for start in range(0, num_tokens, step):
            part = slice(start, min(start + step, num_tokens))
            sources = [_part_of(source, part) for source in (first, second) if source]
            partial = _attend(q[part], sources, scale, value_dim, launch)
            _merge(*partial, sinks, o[part], lse[part], launch, return_lse)
    return (o, lse) if return_lse else o


def _part_of(source: Source, tokens: slice) -> Source:
    cache, rows, record = source
    return cache, rows[tokens], record


def _attend(
    q: Tensor,
    sources: list[Source],
    scale: float,
    value_dim: int,
    launch: RowsLaunch,
) -> tuple[Tensor, Tensor]:
    num_tokens, num_heads, head_dim = q.shape
    shape = (num_tokens, num_heads, launch.num_shares, value_dim)
    partial = torch.empty(shape, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    cache, rows, record = sources[0]
    extra_cache, extra_rows, extra_record = sources[-1]
    rows, extra_rows = (x if x.stride(1) == 1 else x.contiguous() for x in (rows, extra_rows))
    num_extra = extra_rows.shape[1] if len(sources) > 1 else 0
    rows_kernel[(num_tokens * triton.cdiv(num_heads, launch.group), launch.num_shares)](
        q,
        cache,
        rows,
        extra_cache,
        extra_rows,
        partial,
        partial_lse,
        q.stride(0),
        q.stride(1),
        cache.stride(0),
        cache.shape[1],
        rows.stride(0),
        extra_cache.stride(0),
        extra_cache.shape[1],
        extra_rows.stride(0),
        scale,
        num_heads,
        launch.num_shares,
        launch.min_share,
        ROW_STRIDE=cache.shape[2],
        EXTRA_ROW_STRIDE=extra_cache.shape[2],
        NUM_ROWS=rows.shape[1],
        NUM_EXTRA=num_extra,
        PLACES=triton.next_power_of_2(max(1, rows.shape[1])),
        EXTRA_PLACES=triton.next_power_of_2(max(1, num_extra)),
        DIM=head_dim,
        VALUE=value_dim,
        VALUES=launch.value,
        REST=launch.rest,
        GROUP=launch.group,
        ROWS=launch.rows,
        KEYS=launch.keys,
        RECORD=layout_of(record),
        EXTRA_RECORD=layout_of(extra_record),
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return partial, partial_lse


def _merge(
    partial: Tensor,
    partial_lse: Tensor,
    sinks: Tensor | None,
    o: Tensor,
    lse: Tensor,
    launch: RowsLaunch,
    wants_lse: bool,
) -> None:
    num_tokens, num_heads, num_shares, value_dim = partial.shape
    shares = triton.next_power_of_2(num_shares)
    merge_rows_kernel[(num_tokens * num_heads,)](
        partial,
        partial_lse,
        partial_lse if sinks is None else sinks,
        o,
        lse,
        num_heads,
        num_shares,
        VALUE=value_dim,
        VALUES=launch.value,
        SHARES=shares,
        HAS_SINKS=sinks is not None,
        WANTS_LSE=wants_lse,
        num_warps=merge_warps(shares),
    )
