"""Attention whose bits for a query do not depend on batch, chunking or the origin of its prefix.

Queries go in tiles of one number of rows, keys in splits of one length anchored at absolute
position 0, and the splits are merged in order. A split that a query cannot see adds exactly
nothing, so it does not matter how many splits a neighbor needs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.attn import attend_latents
from deepinfer_core.ops.reference.expanded_attn import ExpandedPlan, attend_expanded
from deepinfer_core.ops.reference.invariant_gemm import dense
from deepinfer_core.ops.reference.invariant_plan import InvariantPlan, plan_expanded, plan_paged
from deepinfer_core.ops.reference.lanes import elementwise

MIN_TILE_ROWS = 8
"""Rows of a tile, queries times heads of a group: up to here a product takes as long as for one."""
DIM_MULTIPLE = 16
"""Heads of other sizes are filled up with zeros: their products round by batch, or by threads."""


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
    steps = plan if isinstance(plan, InvariantPlan) else plan_paged(None, meta)
    num_heads, num_kv_heads = q.shape[1], k_cache.shape[2]
    tile_queries = -(-MIN_TILE_ROWS * num_kv_heads // num_heads)
    wide = torch.promote_types(q.dtype, torch.float32)
    o = q.new_empty(q.shape)
    lse = torch.empty(q.shape[:2], dtype=wide, device=q.device)
    for number, (part, rows) in enumerate(steps.parts(tile_queries)):
        keys = steps.keys(tile_queries, number, window)
        by_request = q[rows].to(wide).mul_(scale).view(len(part.requests), -1, *q.shape[1:])
        tiles = _make_tiles(by_request, num_kv_heads, tile_queries)
        scores = _multiply(tiles, _pad_dim(keys.gather(k_cache).to(wide)).transpose(-1, -2))
        peaks, weights = _weigh(scores, keys.hidden, tile_queries, softcap)
        values = _multiply(weights, _pad_dim(keys.gather(v_cache).to(wide)))
        tile_sinks = None if sinks is None else _repeat_sinks(sinks.to(wide), num_kv_heads, tiles)
        part_o, part_lse = _merge_splits(peaks, weights.amax(dim=-1), values, tile_sinks)
        o[rows] = _take_queries(part_o[..., : q.shape[2]], by_request).to(q.dtype)
        lse[rows] = _take_queries(part_lse.unsqueeze(-1), by_request).squeeze(-1)
    return (o, lse) if return_lse else o


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
    return attend_latents(paged, q_latent, q_rope, cache, meta, scale, plan, return_lse)


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
    steps = plan if isinstance(plan, ExpandedPlan) else plan_expanded(None, meta)
    return attend_expanded(paged, dense, q, cache, weight, steps, scale, return_lse)


def _make_tiles(by_request: Tensor, num_kv_heads: int, tile_queries: int) -> Tensor:
    """[R, L, H, D] -> [1, Hk, tiles, tile_queries * G, D], filled up with zeros."""
    missing = -by_request.shape[1] % tile_queries
    filled = F.pad(_pad_dim(by_request), (0, 0, 0, 0, 0, missing))
    group, head_dim = filled.shape[2] // num_kv_heads, filled.shape[3]
    tiles = filled.view(-1, tile_queries, num_kv_heads, group, head_dim).permute(2, 0, 1, 3, 4)
    return tiles.reshape(1, num_kv_heads, -1, tile_queries * group, head_dim)


def _pad_dim(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % DIM_MULTIPLE
    return F.pad(x, (0, missing)) if missing else x


def _multiply(tiles: Tensor, matrices: Tensor) -> Tensor:
    """Multiply each tile by the matrix of each split, in products of one shape.

    Args:
        tiles: [splits or 1, Hk, tiles, M, K]
        matrices: [splits, Hk, R, K, N]; R = 1, or one for each tile.

    Returns:
        [splits, Hk, tiles, M, N]
    """
    num_splits, num_heads, num_matrices = matrices.shape[:3]
    num_tiles, rows, _ = tiles.shape[2:]
    tiles = tiles.expand(num_splits, -1, -1, -1, -1)
    if num_matrices == num_tiles:
        product = torch.bmm(tiles.flatten(0, 2), matrices.flatten(0, 2))
        return product.view(num_splits, num_heads, num_tiles, rows, -1)
    out = tiles.new_empty(num_splits, num_heads, num_tiles, rows, matrices.shape[-1])
    for split in range(num_splits):
        for head in range(num_heads):
            matrix = matrices[split, head].expand(num_tiles, -1, -1)
            torch.bmm(tiles[split, head], matrix, out=out[split, head])
    return out


def _weigh(
    scores: Tensor, hidden: Tensor, tile_queries: int, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Softmax within each split.

    Returns:
        the highest score [splits, Hk, tiles, M], and weights [splits, Hk, tiles, M, SPLIT].
        Where nothing is seen the score is so low that the weights will not count.
    """
    if softcap is not None:
        scores = elementwise(lambda s: s.div_(softcap).tanh_().mul_(softcap), scores)
    lowest = torch.finfo(scores.dtype).min
    by_query = scores.view(*scores.shape[:3], tile_queries, -1, scores.shape[4])
    by_query.masked_fill_(hidden[:, None, :, :, None], lowest)
    return scores.amax(dim=-1), scores.softmax(dim=-1)


def _merge_splits(
    peaks: Tensor, peak_weights: Tensor, values: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Combine the splits in order.

    Args:
        peaks: [splits, Hk, tiles, M] highest score of each split.
        peak_weights: its weight within the split, one over the sum of exponentials.
        values: [splits, Hk, tiles, M, D] weighted within each split; overwritten.
        sinks: [Hk, 1, M] or None.

    Returns:
        o [Hk, tiles, M, D] and lse [Hk, tiles, M].
    """
    top = peaks.amax(dim=0)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    shares = elementwise(torch.exp_, peaks - top).div_(peak_weights)
    values.mul_(shares.unsqueeze(-1))
    total = torch.zeros_like(top) if sinks is None else elementwise(torch.exp_, sinks - top)
    o = torch.zeros_like(values[0])
    for split in range(values.shape[0]):
        total += shares[split]
        o += values[split]
    return o.div_(total.unsqueeze(-1)), top + elementwise(torch.log_, total)


def _repeat_sinks(sinks: Tensor, num_kv_heads: int, tiles: Tensor) -> Tensor:
    """[H] -> [Hk, 1, M], the head of each row of a tile."""
    by_head = sinks.view(num_kv_heads, 1, -1)
    return by_head.repeat(1, 1, tiles.shape[3] // by_head.shape[2])


def _take_queries(tiles: Tensor, by_request: Tensor) -> Tensor:
    """[Hk, tiles, M, D] -> [R * L, H, D], without what filled the tiles up."""
    num_reqs, num_queries, num_heads, _ = by_request.shape
    num_kv_heads, _, _, width = tiles.shape
    grouped = tiles.reshape(num_kv_heads, num_reqs, -1, num_heads // num_kv_heads, width)
    by_query = grouped[:, :, :num_queries].permute(1, 2, 0, 3, 4)
    return by_query.reshape(num_reqs * num_queries, num_heads, width)
