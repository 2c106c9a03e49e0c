"""Reference of the indexer's choice. A query's choice does not depend on its batch.

Queries go in tiles of one size, keys in splits of one length: products of one shape round alike.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.kv import read_slots
from deepinfer_core.ops.rows import slots_of

TILE = 8
SPLIT = 128
DIM_MULTIPLE = 8
"""As in `invariant_attn`."""
NEVER = float("-inf")


def select(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    top_k: int,
    tokens_per_row: int = 1,
    blocks: Tensor | None = None,
    num_blocks: int = 0,
    rows_per_block: int = 0,
    record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.index.select`."""
    chosen = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    kept = torch.full((q.shape[0], num_blocks), -1, dtype=torch.int32, device=q.device)
    first = 0
    for request, count in enumerate(meta.query_lens):
        rows = slice(first, first + count)
        first += count
        num_seen = (meta.positions[rows, None] + 1) // tokens_per_row
        num_keys = meta.seq_len_bounds[request] // tokens_per_row
        slots = _slots(meta, request, num_keys, tokens_per_row)
        keys = torch.arange(len(slots), device=q.device).expand(count, -1)
        if blocks is not None:
            keys = _keys_of(blocks[rows], rows_per_block, len(slots))
            held = read_slots(cache, slots, record)
            scores = _score_listed(q[rows], weights[rows], held, keys)
        elif num_keys > min(top_k, num_blocks * rows_per_block or top_k):
            scores = _score(q[rows], weights[rows], read_slots(cache, slots, record))
        else:
            scores = torch.zeros(keys.shape, device=q.device)  # all that is seen is chosen
        scores.masked_fill_(keys >= num_seen, NEVER)
        picked = _pick(scores, keys, top_k)
        chosen[rows, : picked.shape[1]] = torch.where(picked < 0, -1, slots[picked]).int()
        if num_blocks:
            picked = _best_blocks(scores, num_seen, num_blocks, rows_per_block)
            kept[rows, : picked.shape[1]] = picked.int()
    return (chosen, kept) if num_blocks else chosen


def _slots(meta: AttentionMeta, request: int, num_keys: int, tokens_per_row: int) -> Tensor:
    """[n] int64: where a request's keys lie, whole splits of them, at least one."""
    size = max(-(-num_keys // SPLIT), 1) * SPLIT
    firsts = torch.arange(size, device=meta.positions.device) * tokens_per_row
    owner = torch.full((1,), request, device=firsts.device)
    return slots_of(meta, owner, firsts.unsqueeze(0))[0] // tokens_per_row


def _pick(scores: Tensor, numbers: Tensor, count: int) -> Tensor:
    """[L, <= count]: the numbers of the highest scores, ascending; -1 after those above `NEVER`.

    Args:
        numbers: [L, n] ascending, parallel to the scores.
    """
    # Only a stable sort promises the lower number among equals.
    best, order = scores.sort(dim=-1, descending=True, stable=True)
    after = torch.iinfo(torch.int64).max
    picked = numbers.gather(1, order[:, :count]).masked_fill_(best[:, :count] == NEVER, after)
    picked = picked.sort(dim=-1).values
    return picked.masked_fill_(picked == after, -1)


def _best_blocks(scores: Tensor, num_seen: Tensor, num_blocks: int, rows_per_block: int) -> Tensor:
    """[L, <= num_blocks] numbers of blocks of keys; see `_pick`."""
    padded = F.pad(scores, (0, -scores.shape[1] % rows_per_block), value=NEVER)
    by_block = padded.unflatten(1, (-1, rows_per_block)).amax(dim=2)
    numbers = torch.arange(by_block.shape[1], device=scores.device).expand(by_block.shape)
    newest = torch.div(num_seen - 1, rows_per_block, rounding_mode="floor")
    by_block = by_block.masked_fill(numbers == newest, float("inf"))
    return _pick(by_block, numbers, num_blocks)


def _keys_of(blocks: Tensor, rows_per_block: int, num_keys: int) -> Tensor:
    """[L, n] blocks, -1 = none -> [L, n * rows_per_block] keys in order; num_keys = none."""
    places = torch.arange(rows_per_block, device=blocks.device)
    keys = blocks.long().unsqueeze(2) * rows_per_block + places
    return keys.masked_fill_(blocks.unsqueeze(2) < 0, num_keys).flatten(1).clamp_(max=num_keys)


def _score(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[L, H, D], [L, H], [splits * SPLIT, D] -> [L, splits * SPLIT] float32."""
    count, num_heads, head_dim = q.shape
    missing = -head_dim % DIM_MULTIPLE
    by_split = F.pad(keys.float(), (0, missing)).view(-1, SPLIT, head_dim + missing)
    by_split, num_splits = by_split.transpose(1, 2), len(by_split)
    filled = F.pad(q.float(), (0, missing, 0, 0, 0, -count % TILE))
    tiles = filled.view(-1, TILE, *filled.shape[1:])
    tile_weights = F.pad(weights, (0, 0, 0, -count % TILE)).view(-1, TILE, num_heads, 1)
    out = tiles.new_empty(len(tiles), num_splits, TILE, SPLIT)
    for tile, (rows, factors) in enumerate(zip(tiles, tile_weights, strict=True)):
        products = torch.bmm(rows.flatten(0, 1).expand(num_splits, -1, -1), by_split)
        by_head = products.relu_().view(num_splits, TILE, num_heads, SPLIT).mul_(factors)
        torch.sum(by_head, dim=2, out=out[tile])
    return out.transpose(1, 2).reshape(-1, num_splits * SPLIT)[:count]


def _score_listed(q: Tensor, weights: Tensor, keys: Tensor, listed: Tensor) -> Tensor:
    """[L, H, D], [L, H], [num_keys, D] -> [L, n] float32: each query's scores of its own list.

    Args:
        listed: [L, n] rows of the keys; what is out of range gives any number.
    """
    by_query = F.pad(listed.clamp(max=len(keys) - 1), (0, -listed.shape[1] % SPLIT))
    missing = -keys.shape[1] % DIM_MULTIPLE
    scores = []
    for query, factors, rows in zip(q.float(), weights, by_query, strict=True):
        own = F.pad(keys[rows].float(), (0, missing)).view(-1, SPLIT, keys.shape[1] + missing)
        heads = F.pad(query, (0, missing)).expand(len(own), -1, -1)
        products = torch.bmm(heads, own.transpose(1, 2)).relu_()
        scores.append(products.mul_(factors.view(1, -1, 1)).sum(dim=1).flatten())
    return torch.stack(scores)[:, : listed.shape[1]]
