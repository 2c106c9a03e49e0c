"""Reference of the indexer's choice. A query's choice does not depend on its batch.

Queries go in tiles of one size, keys in splits of one length: products of one shape round alike.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.kv import read_slots
from deepinfer_core.ops.rows import slots_of

TILE = 8
SPLIT = 128
DIM_MULTIPLE = 8
"""As in `invariant_attn`."""


def select(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    top_k: int,
    tokens_per_row: int = 1,
) -> Tensor:
    """See `deepinfer_core.ops.specs.index.select`."""
    chosen = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    first = 0
    for request, count in enumerate(meta.query_lens):
        rows = slice(first, first + count)
        first += count
        positions = meta.positions[rows, None]
        num_keys = meta.seq_len_bounds[request] // tokens_per_row
        num_splits = -(-num_keys // SPLIT)
        keys = torch.arange(num_splits * SPLIT, device=q.device)
        owner = torch.full((1,), request, device=q.device)
        slots = slots_of(meta, owner, (keys * tokens_per_row).unsqueeze(0))[0] // tokens_per_row
        last_tokens = (keys + 1) * tokens_per_row - 1
        if num_keys <= top_k:
            picked = keys.expand(count, -1)[:, :top_k]
        else:
            scores = _score(q[rows], weights[rows], read_slots(cache, slots), num_splits)
            scores.masked_fill_(last_tokens > positions, float("-inf"))
            # Only a stable sort promises the lower position among equals.
            order = scores.sort(dim=-1, descending=True, stable=True).indices
            picked = order[:, :top_k].sort(dim=-1).values
        is_seen = last_tokens[picked] <= positions
        # What is not seen comes after all that is: it was picked last and lies behind the query.
        chosen[rows, : picked.shape[1]] = torch.where(is_seen, slots[picked], -1).int()
    return chosen


def _score(q: Tensor, weights: Tensor, keys: Tensor, num_splits: int) -> Tensor:
    """[L, H, D], [L, H], [splits * SPLIT, D] -> [L, splits * SPLIT] float32."""
    count, num_heads, head_dim = q.shape
    missing = -head_dim % DIM_MULTIPLE
    by_split = F.pad(keys.float(), (0, missing)).view(num_splits, SPLIT, -1).transpose(1, 2)
    filled = F.pad(q.float(), (0, missing, 0, 0, 0, -count % TILE))
    tiles = filled.view(-1, TILE, *filled.shape[1:])
    tile_weights = F.pad(weights, (0, 0, 0, -count % TILE)).view(-1, TILE, num_heads, 1)
    out = tiles.new_empty(len(tiles), num_splits, TILE, SPLIT)
    for tile, (rows, factors) in enumerate(zip(tiles, tile_weights, strict=True)):
        products = torch.bmm(rows.flatten(0, 1).expand(num_splits, -1, -1), by_split)
        by_head = products.relu_().view(num_splits, TILE, num_heads, SPLIT).mul_(factors)
        torch.sum(by_head, dim=2, out=out[tile])
    return out.transpose(1, 2).reshape(-1, num_splits * SPLIT)[:count]
