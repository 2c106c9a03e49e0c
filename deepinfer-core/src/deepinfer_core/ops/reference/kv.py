"""References of the ops that write the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor


def store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """See `deepinfer_core.ops.specs.kv.store`."""
    if not slot_mapping.numel():
        return
    slots = slot_mapping.long()
    if slots.device.type == "cpu" and int(slots.min()) >= 0:
        _write(k_cache, k, slots)
        _write(v_cache, v, slots)
        return
    # Without asking the device how many rows count: the others write back what block 0 holds.
    keep = (slots >= 0).view(-1, 1, 1)
    slots = slots.clamp(min=0)
    for cache, rows in ((k_cache, k), (v_cache, v)):
        _write(cache, torch.where(keep, rows, cache[0, 0]), slots)


def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """See `deepinfer_core.ops.specs.kv.copy_blocks`."""
    pool.index_copy_(0, dst, pool.index_select(0, src))


def token_rows(cache: Tensor, width: int) -> tuple[Tensor, int] | None:
    """View a cache as rows of `width` elements, which must divide a token.

    Returns:
        The view [rows, width] and the number of rows from one block to the next, or None if the
        stride of the block axis is no multiple of `width`.
    """
    num_blocks, block_size, num_heads, head_dim = cache.shape
    rows_per_block, rest = divmod(cache.stride(0), width)
    if rest:
        return None
    used = block_size * num_heads * head_dim // width
    # LAYOUT: rows of other layers lie between the blocks of this one and are never addressed.
    num_rows = (num_blocks - 1) * rows_per_block + used
    return cache.as_strided((num_rows, width), (width, 1)), rows_per_block


def _write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    block_size = cache.shape[1]
    blocks, offsets = slots // block_size, slots % block_size
    width = cache.shape[2] * cache.shape[3]
    view = token_rows(cache, width)
    if view is None:
        cache.index_put_((blocks, offsets), rows)
        return
    flat, rows_per_block = view
    index = slots if rows_per_block == block_size else blocks * rows_per_block + offsets
    flat.index_copy_(0, index, rows.reshape(-1, width))
