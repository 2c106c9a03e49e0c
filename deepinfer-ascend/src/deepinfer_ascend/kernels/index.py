"""The choice of tokens that sparse attention sees, by the vendor's lightning indexer."""

from __future__ import annotations

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.rows import token_requests
from torch import Tensor

from deepinfer_ascend.kernels.pages import as_pages, is_countable, repage

BLOCK_UNIT, MAX_BLOCK = 16, 1024
"""Rows of blocks that are read where they lie."""
ALL = 0


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
    """See `deepinfer_core.ops.specs.index.select`, with float32 weights."""
    del rows_per_block
    assert blocks is None and record is None and not num_blocks
    return _select(q, weights, cache, meta, top_k, tokens_per_row)


def select_in_16_bits(
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
    """See `deepinfer_core.ops.specs.index.select`, with weights rounded to the dtype of q."""
    del rows_per_block
    assert blocks is None and record is None and not num_blocks
    return _select(q, weights.to(q.dtype), cache, meta, top_k, tokens_per_row)


def _select(
    q: Tensor, weights: Tensor, cache: Tensor, meta: AttentionMeta, top_k: int, tokens_per_row: int
) -> Tensor:
    if not q.numel():
        return q.new_empty(q.shape[0], top_k, dtype=torch.int32)
    # Each query is a request of its own: how many rows it sees then follows from its position.
    owners = token_requests(meta)
    num_seen = torch.div(meta.positions + 1, tokens_per_row, rounding_mode="floor")
    num_blocks = max(1, -(-meta.max_seq_len // meta.block_size))
    keys, tables = _keys(cache, meta.block_tables[:, :num_blocks])
    ends = torch.arange(1, len(q) + 1, dtype=torch.int32, device=q.device)
    found, _ = torch.ops.npu.npu_lightning_indexer(
        q.contiguous(),
        keys.unsqueeze(2),
        weights.contiguous(),
        actual_seq_lengths_query=ends,
        actual_seq_lengths_key=num_seen.int(),
        block_table=tables.index_select(0, owners),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=top_k,
        sparse_mode=ALL,
    )
    return _slots(found.squeeze(1).long(), num_seen, meta, owners, cache.shape[1])


def _keys(cache: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """The cache as contiguous pages, with tables of them; or a copy of what is read."""
    size, pages = cache.shape[1], as_pages(cache)
    is_readable = size % BLOCK_UNIT == 0 and size <= MAX_BLOCK
    if pages is None or not is_readable or not is_countable(pages):
        return repage(cache, tables)
    return pages.cache, tables * pages.step


def _slots(
    rows: Tensor, num_seen: Tensor, meta: AttentionMeta, owners: Tensor, block_rows: int
) -> Tensor:
    """Slots [T, k] int32 of rows of each token's request, ascending, -1 after the last."""
    after = torch.iinfo(torch.int64).max
    is_seen = (rows >= 0) & (rows < num_seen.unsqueeze(1))
    rows = rows.masked_fill(~is_seen, after).sort(dim=1).values
    is_none = rows == after
    rows = rows.masked_fill(is_none, 0)
    tables = meta.block_tables.index_select(0, owners)
    columns = torch.div(rows, block_rows, rounding_mode="floor")
    slots = tables.gather(1, columns).long() * block_rows + rows % block_rows
    return slots.masked_fill(is_none, -1).int()
