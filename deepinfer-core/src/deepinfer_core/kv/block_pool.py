"""The block pool: who holds each block, which one is reused next, and which are hittable.

Owns reference counts, the free list and the map from digest to block. Knows no request, no group
and no token. Every operation is O(1) per block.

INVARIANT: a block is on the free list iff its reference count is 0 and it is not the null block.
A free block that carries a digest stays hittable until it is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from deepinfer_core.errors import ConfigError, IntegrityError

NULL_BLOCK = 0
"""Pads block tables and stands for blocks out of the window; never allocated, never written."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change of what the prefix cache can serve, for routers and tiers below the device."""

    kind: Literal["stored", "removed", "cleared"]
    block_id: int
    digest: bytes
    """Empty for `cleared`, which concerns every block."""


class BlockPool:
    """Reference-counted blocks with an LRU free list.

    The list is intrusive: `_next` and `_previous` hold block ids, and entry 0, which the null
    block never needs, is its two-ended sentinel: `_next[0]` is reused first.

    Args:
        num_blocks: blocks in the pool, the null block included.
        listener: called with each event, in order; must not call back into the pool.

    Raises:
        ConfigError: fewer than two blocks.
    """

    __slots__ = (
        "_digests",
        "_next",
        "_previous",
        "cached_blocks",
        "listener",
        "num_blocks",
        "num_free_blocks",
        "ref_counts",
    )

    def __init__(
        self, num_blocks: int, *, listener: Callable[[BlockEvent], None] | None = None
    ) -> None:
        if num_blocks < 2:
            raise ConfigError(
                "the pool needs the null block and one more",
                field="cache.num_blocks",
                value=num_blocks,
                allowed="at least 2",
            )
        self.num_blocks = num_blocks
        self.num_free_blocks = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        self.cached_blocks: dict[bytes, int] = {}
        """Digest -> the one block that serves it."""
        self.listener = listener
        self._digests: list[bytes | None] = [None] * num_blocks
        self._next: list[int] = [*range(1, num_blocks), 0]
        self._previous: list[int] = [num_blocks - 1, *range(num_blocks - 1)]

    def allocate(self) -> int:
        """Take the block that was free longest; it stops being hittable.

        The caller has checked `num_free_blocks`.
        """
        block = self._next[0]
        if not block:
            raise IntegrityError(f"no free block among {self.num_blocks}; the caller must check")
        self._unlink(block)
        digest = self._digests[block]
        if digest is not None:
            self._forget(block, digest)
        self.ref_counts[block] = 1
        return block

    def touch(self, block: int) -> None:
        """Add a reference; a free block leaves the free list."""
        if self.ref_counts[block] == 0:
            self._unlink(block)
        self.ref_counts[block] += 1

    def free(self, block: int) -> None:
        """Drop a reference. The last one puts the block on the free list, digest and all.

        A block without a digest can serve nobody, so it is reused first.
        """
        if self.ref_counts[block] <= 0:
            raise IntegrityError(f"block {block} freed with {self.ref_counts[block]} references")
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._link(block, first=self._digests[block] is None)

    def store(self, block: int, digest: bytes) -> bool:
        """Make a held block hittable under `digest`; False if another block already serves it."""
        if digest in self.cached_blocks or self._digests[block] is not None:
            return False
        self._digests[block] = digest
        self.cached_blocks[digest] = block
        if self.listener is not None:
            self.listener(BlockEvent("stored", block, digest))
        return True

    def clear(self) -> None:
        """Make nothing hittable. Blocks stay with those that hold them."""
        for block in self.cached_blocks.values():
            self._digests[block] = None
        self.cached_blocks.clear()
        if self.listener is not None:
            self.listener(BlockEvent("cleared", NULL_BLOCK, b""))

    def check_integrity(self) -> None:
        """Compare counts, links and digests.

        Raises:
            IntegrityError: with the arithmetic.
        """
        free: list[int] = []
        before, block = 0, self._next[0]
        while self._previous[block] == before and block and len(free) < self.num_blocks:
            free.append(block)
            before, block = block, self._next[block]
        if block or self._previous[0] != before:
            raise IntegrityError(f"the free list is torn behind block {before}")
        num_used = sum(1 for count in self.ref_counts if count > 0)
        if len(free) != self.num_free_blocks or len(free) + num_used + 1 != self.num_blocks:
            raise IntegrityError(
                f"{len(free)} listed free (counter {self.num_free_blocks}) + {num_used} used "
                f"+ 1 null != {self.num_blocks} blocks"
            )
        wrong = [block for block in free if self.ref_counts[block] != 0]
        if wrong or self.ref_counts[NULL_BLOCK] != 0:
            raise IntegrityError(f"free or null blocks with references: {wrong or [NULL_BLOCK]}")
        carried = {digest: block for block, digest in enumerate(self._digests) if digest}
        if carried != self.cached_blocks:
            raise IntegrityError(
                f"{len(carried)} blocks carry digests, {len(self.cached_blocks)} are indexed, "
                "or they disagree on which"
            )

    def _forget(self, block: int, digest: bytes) -> None:
        self._digests[block] = None
        del self.cached_blocks[digest]
        if self.listener is not None:
            self.listener(BlockEvent("removed", block, digest))

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.num_free_blocks -= 1

    def _link(self, block: int, *, first: bool) -> None:
        before, after = (0, self._next[0]) if first else (self._previous[0], 0)
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self.num_free_blocks += 1
