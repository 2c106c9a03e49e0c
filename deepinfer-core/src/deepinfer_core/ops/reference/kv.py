"""References of the ops that write the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor


def store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """See `deepinfer_core.ops.specs.kv.store`."""
    if not slot_mapping.numel():
        return
    slots = slot_mapping.long()
    if slots.device.type != "cpu" or int(slots.min()) < 0:
        # Without asking a device how many rows count: the others write back what block 0 holds.
        keep = (slots >= 0).view(-1, 1, 1)
        slots = slots.clamp(min=0)
        k, v = (torch.where(keep, new, old[0, 0]) for new, old in ((k, k_cache), (v, v_cache)))
    block_size, width = k_cache.shape[1], k_cache.shape[2] * k_cache.shape[3]
    k_rows, v_rows = token_rows(k_cache, width), token_rows(v_cache, width)
    if k_rows is None or v_rows is None or k_rows[1] != v_rows[1]:
        places = slots // block_size, slots % block_size
        k_cache.index_put_(places, k)
        v_cache.index_put_(places, v)
        return
    if (gap := k_rows[1] - block_size) > 0:
        # LAYOUT: row = block * rows_per_block + offset = slot + block * gap
        slots = slots + slots // block_size * gap
    k_rows[0].index_copy_(0, slots, k.reshape(-1, width))
    v_rows[0].index_copy_(0, slots, v.reshape(-1, width))


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
