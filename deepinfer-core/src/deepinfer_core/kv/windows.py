"""Blocks that have left a sliding window: which may go, and their return to the pool.

Knows window groups only; full groups never drop a block.
"""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.kv.block_pool import NULL_BLOCK, BlockPool
from deepinfer_core.kv.copies import BlockCopies
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.kv.tables import RequestBlocks

Drops = dict[int, list[int]]
"""Window group -> ascending table indices whose blocks can go."""


class Windows:
    """The window groups of a layout.

    Args:
        to_index: whether a block (group, table index) will be hittable once its content is
            settled. It is held until then, but not at the price of anything else.
    """

    __slots__ = ("_copies", "_groups", "_pool", "_sizes", "_to_index")

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool,
        copies: BlockCopies,
        *,
        to_index: Callable[[int, int], bool],
    ) -> None:
        self._groups = [
            (g, group.window_size - 1, group.block_size)
            for g, group in enumerate(layout.groups)
            if group.window_size is not None
        ]
        self._sizes = [group.block_size for group in layout.groups]
        self._pool = pool
        self._copies = copies
        self._to_index = to_index

    def make_room(self, held: RequestBlocks, position: int, num_needed: int) -> Drops | None:
        """What to drop so that `num_needed` blocks are free, or None; drops nothing yet.

        Args:
            position: the next to be computed; what it cannot see may go.
        """
        num_free = self._pool.num_free_blocks
        if not self._groups:
            return {} if num_needed <= num_free else None
        drops = self._invisible(held, position)
        spared = {g: self._without_unsettled(held, g, indices) for g, indices in drops.items()}
        if num_needed <= num_free or num_needed <= num_free + self._num_gained(held, spared):
            return spared
        return drops if num_needed <= num_free + self._num_gained(held, drops) else None

    def drop(self, held: RequestBlocks, drops: Drops) -> dict[int, int]:
        """Give up blocks; returns group -> first table index that changed."""
        changed = {}
        for group, indices in drops.items():
            if not indices:
                continue
            table = held.tables[group]
            for index in indices:
                self._copies.release(table[index])
                table[index] = NULL_BLOCK
            changed[group] = indices[0]
            start = held.num_dropped[group]
            while start <= indices[-1] and table[start] == NULL_BLOCK:
                start += 1
            held.num_dropped[group] = start
        return changed

    def _invisible(self, held: RequestBlocks, position: int) -> Drops:
        drops = {}
        for g, num_before, size in self._groups:
            table = held.tables[g]
            stop = min(max(0, position - num_before) // size, len(table))
            drops[g] = [i for i in range(held.num_dropped[g], stop) if table[i] != NULL_BLOCK]
        return drops

    def _without_unsettled(self, held: RequestBlocks, group: int, indices: list[int]) -> list[int]:
        num_settled = held.num_settled // self._sizes[group]
        return [i for i in indices if i < num_settled or not self._to_index(group, i)]

    def _num_gained(self, held: RequestBlocks, drops: Drops) -> int:
        # Sources of queued copies are never among these: they hold the positions written next.
        ref_counts = self._pool.ref_counts
        return sum(
            ref_counts[held.tables[group][index]] == 1
            for group, indices in drops.items()
            for index in indices
        )
