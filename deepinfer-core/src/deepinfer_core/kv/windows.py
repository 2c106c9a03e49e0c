"""Blocks that have left a sliding window: which may go, and their return to the pool.

Knows window groups only; full groups never drop a block.
"""

from __future__ import annotations

from deepinfer_core.kv.block_pool import NULL_BLOCK, BlockPool
from deepinfer_core.kv.copies import BlockCopies
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.kv.tables import RequestBlocks

Limits = dict[int, int]
"""Window group -> how many leading table entries are, or will be, the null block."""


class Windows:
    """The window groups of a layout.

    Args:
        keep_unsettled: hold blocks out of the window until their content is settled, since only
            then can they be indexed; but not at the price of anything else.
    """

    __slots__ = ("_copies", "_groups", "_keep_unsettled", "_pool")

    def __init__(
        self, layout: KVLayout, pool: BlockPool, copies: BlockCopies, *, keep_unsettled: bool
    ) -> None:
        self._groups = [
            (g, group.window_size - 1, group.block_size)
            for g, group in enumerate(layout.groups)
            if group.window_size is not None
        ]
        self._pool = pool
        self._copies = copies
        self._keep_unsettled = keep_unsettled

    def make_room(self, held: RequestBlocks, position: int, num_needed: int) -> Limits | None:
        """How far to drop so that `num_needed` blocks are free, or None; drops nothing yet.

        Args:
            position: the next to be computed; what it cannot see may go.
        """
        num_free = self._pool.num_free_blocks
        if not self._groups:
            return {} if num_needed <= num_free else None
        if self._keep_unsettled:
            limits = self._limits(position, held.num_settled)
            if num_needed <= num_free or num_needed <= num_free + self._num_gained(held, limits):
                return limits
        limits = self._limits(position, position)
        return limits if num_needed <= num_free + self._num_gained(held, limits) else None

    def drop(self, held: RequestBlocks, limits: Limits) -> dict[int, int]:
        """Give up blocks; returns group -> first table index that changed."""
        changed = {}
        for group, limit in limits.items():
            table, start = held.tables[group], held.num_dropped[group]
            limit = min(limit, len(table))
            if limit > start:
                for index in range(start, limit):
                    self._copies.release(table[index])
                    table[index] = NULL_BLOCK
                held.num_dropped[group] = limit
                changed[group] = start
        return changed

    def _limits(self, position: int, num_settled: int) -> Limits:
        return {
            g: min(max(0, position - num_before), num_settled) // size
            for g, num_before, size in self._groups
        }

    def _num_gained(self, held: RequestBlocks, limits: Limits) -> int:
        # Sources of queued copies are never among these: they hold the positions written next.
        return sum(
            self._pool.ref_counts[block] == 1
            for group, limit in limits.items()
            for block in held.tables[group][held.num_dropped[group] : limit]
        )
