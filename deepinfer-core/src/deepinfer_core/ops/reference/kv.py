"""References of the ops that write the KV cache."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.lanes import elementwise
from deepinfer_core.ops.reference.records import decode
from deepinfer_core.plugin_api.kernel import Problem


class StorePlan:
    """Where a step's tokens go; worked out once, for all layers of a layout group."""

    def __init__(self, slot_mapping: Tensor) -> None:
        slots = slot_mapping.long()
        self.keep: Tensor | None = None
        """[T, 1, 1] bool, which tokens are written; None: all of them."""
        if slots.device.type != "cpu" or (slots.numel() and int(slots.min()) < 0):
            self.keep = (slots >= 0).view(-1, 1, 1)
            slots = slots.clamp(min=0)
        self.slots = slots
        self._rows: dict[tuple[int, int], Tensor] = {}

    def rows(self, block_size: int, rows_per_block: int) -> Tensor:
        """[T] int64: rows of a cache in which so many rows lie from one block to the next."""
        key = (block_size, rows_per_block)
        if key not in self._rows:
            # LAYOUT: row = block * rows_per_block + offset = slot + block * gap
            gap = rows_per_block - block_size
            self._rows[key] = self.slots + self.slots // block_size * gap
        return self._rows[key]


def plan_store(problem: Problem | None, meta: AttentionMeta) -> StorePlan:
    """The `plan` of `kv.store`. Never waits for a device."""
    return StorePlan(meta.slot_mapping)


def store(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slot_mapping: Tensor,
    plan: object | None = None,
) -> None:
    """See `deepinfer_core.ops.specs.kv.store`."""
    places = plan if isinstance(plan, StorePlan) else StorePlan(slot_mapping)
    _store(k, k_cache, places)
    if v is not None and v_cache is not None:
        _store(v, v_cache, places)


def _store(new: Tensor, cache: Tensor, places: StorePlan) -> None:
    if places.keep is not None:
        # Without asking a device how many rows count: the others write back what block 0 holds.
        new = torch.where(places.keep, new, cache[0, 0])
    block_size, width = cache.shape[1], cache.shape[2] * cache.shape[3]
    view = token_rows(cache, width)
    if view is None:
        cache.index_put_((places.slots // block_size, places.slots % block_size), new)
        return
    flat, rows_per_block = view
    flat.index_copy_(0, places.rows(block_size, rows_per_block), new.reshape(-1, width))


def compress(cache: Tensor, rows: Tensor, position_bias: Tensor, overlaps: bool) -> Tensor:
    """See `deepinfer_core.ops.specs.kv.compress`."""
    if rows.device.type != "cpu":  # would wait for the device
        return _pool(cache, rows, position_bias, overlaps)
    is_group = (rows >= 0).any(dim=1)
    width = position_bias.shape[1] // (2 if overlaps else 1)
    pooled = position_bias.new_zeros(len(rows), width)
    pooled[is_group] = _pool(cache, rows[is_group], position_bias, overlaps)
    return pooled


def _pool(cache: Tensor, rows: Tensor, position_bias: Tensor, overlaps: bool) -> Tensor:
    size, width = position_bias.shape
    raw = read_slots(cache, rows.long().clamp(min=0).flatten()).view(*rows.shape, 2 * width)
    raw = raw.masked_fill((rows < 0).unsqueeze(2), 0.0)  # what stands for no row may be nan
    values, gates = raw[..., :width], raw[..., width:]
    if overlaps:
        half = width // 2
        values = torch.cat((values[:, :size, :half], values[:, size:, half:]), dim=1)
        gates = torch.cat(
            (
                gates[:, :size, :half] + position_bias[:, :half],
                gates[:, size:, half:] + position_bias[:, half:],
            ),
            dim=1,
        )
    else:
        gates = gates + position_bias
    gates = gates.masked_fill((rows < 0).unsqueeze(2), torch.finfo(gates.dtype).min)
    weights = elementwise(torch.exp_, gates - gates.amax(dim=1, keepdim=True))
    total, pooled = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for token in range(rows.shape[1]):  # in order, whatever the number of groups
        total = total + weights[:, token]
        pooled = pooled + weights[:, token] * values[:, token]
    return pooled / total


def read_slots(cache: Tensor, slots: Tensor, record: Record | None = None) -> Tensor:
    """Rows of a cache [P, s, D] that may be strided by blocks: [n] int64 -> [n, D].

    Records are decoded: they become rows [n, W] float32.
    """
    if record is not None:
        return decode(read_slots(cache, slots), record)
    num_blocks, block_size, width = cache.shape
    # LAYOUT: rows of the view begin at every multiple of `step` elements, so they overlap where
    # the stride of the block axis is no multiple of a row.
    step = gcd(cache.stride(0), width)
    per_block, per_row = cache.stride(0) // step, width // step
    num_rows = (num_blocks - 1) * per_block + (block_size - 1) * per_row + 1
    rows = cache.as_strided((num_rows, width), (step, 1))
    return rows.index_select(0, slots // block_size * per_block + slots % block_size * per_row)


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
