"""Reference of the indexer's choice. A query's choice does not depend on its batch.

Each query is multiplied by keys in splits of one length: products of one shape round alike,
however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.kv import read_slots

SPLIT = 128
HEAD_MULTIPLE, DIM_MULTIPLE = 8, 16
"""As in `sparse_attn`."""
SCRATCH = 2**20
"""Numbers that are held at once; more where one query has more keys."""
STRETCH = 16 * SPLIT
"""Keys that are read at once."""
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
    for request, rows, num_keys in _parts(meta, tokens_per_row, q.shape[1]):
        num_seen = (meta.positions[rows, None] + 1) // tokens_per_row
        slots = _slots(meta, request, num_keys, tokens_per_row)
        keys = torch.arange(len(slots), device=q.device).expand(len(num_seen), -1)
        if blocks is not None:
            # Behind the context there are no blocks, so their places in the lists are empty.
            listed = blocks[rows, : max(1, -(-num_keys // rows_per_block))]
            keys = _keys_of(listed, rows_per_block, len(slots))
            listed = slots[keys.clamp(max=len(slots) - 1)]
            scores = _score_listed(q[rows], weights[rows], cache, listed, record)
        elif num_keys > min(top_k, num_blocks * rows_per_block or top_k):
            scores = _score_all(q[rows], weights[rows], cache, slots, record)
        else:
            scores = torch.zeros(keys.shape, device=q.device)  # all that is seen is chosen
        scores.masked_fill_(keys >= num_seen, NEVER)
        picked = _pick(scores, keys, top_k)
        chosen[rows, : picked.shape[1]] = torch.where(picked < 0, -1, slots[picked]).int()
        if num_blocks:
            picked = _best_blocks(scores, num_seen, num_blocks, rows_per_block)
            kept[rows, : picked.shape[1]] = picked.int()
    return (chosen, kept) if num_blocks else chosen


def _parts(
    meta: AttentionMeta, tokens_per_row: int, num_heads: int
) -> Iterator[tuple[int, slice, int]]:
    """Few queries of one request at a time: its number, their rows, the keys that they may see."""
    first = 0
    for request, count in enumerate(meta.query_lens):
        bound = meta.seq_len_bounds[request]
        step = max(1, SCRATCH // max(bound // tokens_per_row, SPLIT * num_heads))
        for start in range(0, count, step):
            stop = min(start + step, count)
            num_keys = (bound - count + stop) // tokens_per_row
            yield request, slice(first + start, first + stop), num_keys
        first += count


def _slots(meta: AttentionMeta, request: int, num_keys: int, tokens_per_row: int) -> Tensor:
    """[n] int64: where a request's keys lie, whole splits of them, at least one."""
    size = max(-(-num_keys // SPLIT), 1) * SPLIT
    per_block = meta.block_size // tokens_per_row
    blocks = meta.block_tables[request, : -(-size // per_block)].long()
    places = torch.arange(per_block, device=blocks.device)
    slots = (blocks.unsqueeze(1) * per_block + places).flatten()[:size]
    return F.pad(slots, (0, size - len(slots)))


def _pick(scores: Tensor, numbers: Tensor, count: int) -> Tensor:
    """[L, <= count]: the numbers of the highest scores, ascending; -1 after those above `NEVER`.

    Args:
        numbers: [L, n] ascending, parallel to the scores.
    """
    best = _ranks(scores).topk(min(count, scores.shape[1]), dim=1, sorted=False).indices
    after = torch.iinfo(torch.int64).max
    picked = numbers.gather(1, best).masked_fill_(scores.gather(1, best) == NEVER, after)
    picked = picked.sort(dim=1).values
    return picked.masked_fill_(picked == after, -1)


def _ranks(scores: Tensor) -> Tensor:
    """[L, n] -> int64, ordered like the scores in float32 and, among equals, the first on top."""
    bits = (scores.to(torch.float32) + 0.0).view(torch.int32)  # makes the two zeros one
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    columns = torch.arange(0, -scores.shape[1], -1, device=scores.device)
    return columns.add(ordered, alpha=2**32)


def _best_blocks(scores: Tensor, num_seen: Tensor, num_blocks: int, rows_per_block: int) -> Tensor:
    """[L, <= num_blocks] numbers of blocks of keys; see `_pick`."""
    padded = F.pad(scores, (0, -scores.shape[1] % rows_per_block), value=NEVER)
    by_block = padded.view(len(padded), -1, rows_per_block).amax(dim=2)
    numbers = torch.arange(by_block.shape[1], device=scores.device).expand(by_block.shape)
    newest = torch.div(num_seen - 1, rows_per_block, rounding_mode="floor")
    by_block = by_block.masked_fill(numbers == newest, float("inf"))
    return _pick(by_block, numbers, num_blocks)


def _keys_of(blocks: Tensor, rows_per_block: int, num_keys: int) -> Tensor:
    """[L, n] blocks, -1 = none -> [L, n * rows_per_block] keys in order; num_keys = none."""
    places = torch.arange(rows_per_block, device=blocks.device)
    keys = blocks.long().unsqueeze(2) * rows_per_block + places
    return keys.masked_fill_(blocks.unsqueeze(2) < 0, num_keys).flatten(1).clamp_(max=num_keys)


def _score_all(
    q: Tensor, weights: Tensor, cache: Tensor, slots: Tensor, record: Record | None
) -> Tensor:
    """[L, H, D], [L, H], slots [splits * SPLIT] -> [L, splits * SPLIT] float32."""
    stretches = (read_slots(cache, part, record) for part in torch.split(slots, STRETCH))
    return torch.cat([_score(q, weights, keys) for keys in stretches], dim=1)


def _score(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[L, H, D], [L, H], [splits * SPLIT, D] -> [L, splits * SPLIT] float32."""
    heads, factors, by_split = _fill(q, weights, keys)
    out = heads.new_empty(len(heads), len(by_split), SPLIT)
    if len(heads) < len(by_split):
        for query in range(len(heads)):
            products = torch.bmm(heads[query].expand(len(by_split), -1, -1), by_split)
            torch.sum(products.relu_().mul_(factors[query]), dim=1, out=out[query])
    else:
        for split in range(len(by_split)):
            products = torch.bmm(heads, by_split[split].expand(len(heads), -1, -1))
            torch.sum(products.relu_().mul_(factors), dim=1, out=out[:, split])
    return out.flatten(1)


def _score_listed(
    q: Tensor, weights: Tensor, cache: Tensor, slots: Tensor, record: Record | None
) -> Tensor:
    """[L, H, D], [L, H], [L, n] slots -> [L, n] float32: each query's scores of its own list."""
    whole = F.pad(slots, (0, -slots.shape[1] % SPLIT))
    scores = [
        _score(q[row : row + 1], weights[row : row + 1], read_slots(cache, own, record))
        for row, own in enumerate(whole)
    ]
    return torch.cat(scores)[:, : slots.shape[1]]


def _fill(q: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fill heads and dims up: [L, H, D], [L, H, 1] and [splits, D, SPLIT], all float32."""
    num_heads, head_dim = q.shape[1:]
    more_heads, more_dims = -num_heads % HEAD_MULTIPLE, -head_dim % DIM_MULTIPLE
    heads = F.pad(q.float(), (0, more_dims, 0, more_heads))
    factors = F.pad(weights, (0, more_heads)).unsqueeze(2)
    wide = F.pad(keys.float(), (0, more_dims)) if more_dims else keys.float()  # pad would copy
    return heads, factors, wide.view(-1, SPLIT, head_dim + more_dims).transpose(1, 2)
