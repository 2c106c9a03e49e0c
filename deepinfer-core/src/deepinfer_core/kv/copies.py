"""Copy-on-write: block copies that are queued until the next plan takes them.

Owns the promise that a queued copy's source keeps its content until then.
"""

from __future__ import annotations

from deepinfer_core.errors import IntegrityError
from deepinfer_core.kv.block_pool import BlockPool


class BlockCopies:
    """Queued copies over a pool, and the way to give up blocks that may be part of one."""

    __slots__ = ("_pool", "_sources", "orphans")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._sources: dict[int, int] = {}
        """Destination -> source."""
        self.orphans: list[int] = []
        """Sources whose last holder left; each keeps one reference until the copies are taken."""

    def replace(self, block: int) -> int:
        """Exchange a reference to a shared block for a private block with its content."""
        assert block not in self._sources, "a copy is written one step after it was made"
        target = self._pool.allocate()
        self._sources[target] = block
        self._pool.free(block)
        return target

    def release(self, block: int) -> None:
        """Drop a reference to any block."""
        if self._sources and self._pool.ref_counts[block] == 1:
            if block in self._sources:
                del self._sources[block]  # nobody will read the copy
            elif block in self._sources.values():
                self.orphans.append(block)
                return
        self._pool.free(block)

    def take(self) -> list[tuple[int, int]]:
        """(source, destination) of all queued copies; hands them over once."""
        if not self._sources and not self.orphans:
            return []
        taken = [(source, target) for target, source in self._sources.items()]
        self._sources.clear()
        for block in self.orphans:
            self._pool.free(block)
        self.orphans.clear()
        return taken

    def check_integrity(self) -> None:
        """Copies of one plan must not depend on their order.

        Raises:
            IntegrityError: names the blocks that are both read and written.
        """
        both = self._sources.keys() & set(self._sources.values())
        if both:
            raise IntegrityError(f"blocks {sorted(both)} are source and destination of copies")
