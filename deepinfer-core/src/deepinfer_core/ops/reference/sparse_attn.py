"""Reference of attention to chosen rows. A query's bits do not depend on its batch.

Queries go in tiles of one size, and each has as many rows as any other: products of one shape.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.kv import token_rows
from deepinfer_core.ops.reference.lanes import elementwise

TILE = 8
MIN_ROWS = 8
"""Heads of a product, and `DIM_MULTIPLE` its dims: as in `invariant_attn`."""
DIM_MULTIPLE = 8


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
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.sparse_mla`."""
    num_tokens, num_heads, head_dim = q.shape
    o = q.new_empty(num_tokens, num_heads, value_dim)
    lse = torch.empty(num_tokens, num_heads, device=q.device)
    sources = [(cache, rows)]
    if extra_cache is not None and extra_rows is not None:
        sources.append((extra_cache, extra_rows))
    fill = (0, -head_dim % DIM_MULTIPLE, 0, max(0, MIN_ROWS - num_heads))
    for first in range(0, num_tokens, TILE):
        tile = slice(first, first + TILE)
        count = min(TILE, num_tokens - first)
        slots = [F.pad(each[tile], (0, 0, 0, TILE - count), value=-1) for _, each in sources]
        keys = [
            read_slots(held, each.long().clamp(min=0).flatten()).view(*each.shape, -1)
            for (held, _), each in zip(sources, slots, strict=True)
        ]
        k = F.pad(torch.cat(keys, dim=1).float(), fill[:2])
        queries = F.pad(q[tile].float(), (*fill, 0, TILE - count)).mul_(scale)
        scores = torch.bmm(queries, k.transpose(1, 2))[:, :num_heads]
        scores.masked_fill_((torch.cat(slots, dim=1) < 0).unsqueeze(1), float("-inf"))
        tile_o, tile_lse = _attend(scores, k, sinks, fill[3])
        o[tile] = tile_o[:count, :, :value_dim].to(q.dtype)
        lse[tile] = tile_lse[:count]
    return (o, lse) if return_lse else o


def read_slots(cache: Tensor, slots: Tensor) -> Tensor:
    """Rows of a cache [P, s, D] that may be strided by blocks: [n] int64 -> [n, D]."""
    block_size, width = cache.shape[1:]
    view = token_rows(cache.unsqueeze(2), width)
    if view is None:
        return cache[slots // block_size, slots % block_size]
    flat, rows_per_block = view
    return flat.index_select(0, slots // block_size * rows_per_block + slots % block_size)


def _attend(
    scores: Tensor, k: Tensor, sinks: Tensor | None, missing_rows: int
) -> tuple[Tensor, Tensor]:
    """[tile, H, n], [tile, n, D] -> o [tile, H, D] and lse [tile, H]."""
    peak = scores.amax(dim=-1, keepdim=True)
    if sinks is not None:
        peak = torch.maximum(peak, sinks.float().view(1, -1, 1))
    # The floor keeps the difference of two empty sets from being nan.
    peak = peak.clamp_(min=torch.finfo(peak.dtype).min)
    weights = elementwise(torch.exp_, scores - peak)
    total = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + elementwise(torch.exp_, sinks.float().view(1, -1, 1) - peak)
    products = torch.bmm(F.pad(weights, (0, 0, 0, missing_rows)), k)[:, : scores.shape[1]]
    o = products / total.clamp(min=torch.finfo(total.dtype).tiny)
    return o, (peak + elementwise(torch.log_, total)).squeeze(-1)
