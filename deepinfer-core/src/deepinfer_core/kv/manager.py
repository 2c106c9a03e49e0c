"""Block tables of requests over one pool: prefix hits, growth, windows, copy-on-write, release.

Owns which request holds which block. Knows nothing of steps, rows' life or policies; it reads a
request's ids and `num_computed_tokens` and never writes to it.

    who frees a block, exactly once
      left by a window         allocate
      copied before a write    allocate; the source waits in `BlockCopies` if nobody else holds it
      request gives up all     free
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

from deepinfer_core.kv.block_pool import NULL_BLOCK, BlockEvent, BlockPool
from deepinfer_core.kv.copies import BlockCopies
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.kv.prefix_index import PrefixIndex
from deepinfer_core.kv.tables import (
    KVStats,
    RequestBlocks,
    check_tables,
    max_blocks_held,
    max_tokens_held,
    shared_blocks,
)
from deepinfer_core.kv.windows import Windows
from deepinfer_core.request import Request
from deepinfer_core.scheduling.plan import BlockUpdate


class KVManager:
    """Hands out the blocks of one pool to requests.

    Args:
        layout: groups, block sizes, hit granularity.
        num_blocks: blocks in the pool, the null block included.
        prefix_caching: whether full blocks become hittable.
        listener: called with each `BlockEvent`.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        prefix_caching: bool = True,
        listener: Callable[[BlockEvent], None] | None = None,
    ) -> None:
        self.layout = layout
        self.pool = BlockPool(num_blocks, listener=listener)
        self.prefix_caching = prefix_caching
        self._index = PrefixIndex(layout, self.pool.cached_blocks)
        self._held: dict[int, RequestBlocks] = {}
        self._copies = BlockCopies(self.pool)
        self._sizes = [group.block_size for group in layout.groups]
        self._windows = Windows(layout, self.pool, self._copies, to_index=self._will_index)
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    def match_prefix(self, request: Request) -> int:
        """Tokens of a request without blocks that the cache can serve.

        To take the hit, set `num_hit_tokens` to it, `num_computed_tokens` to where the layout lets
        computing begin, and call `allocate` before anything else changes the pool. At least one
        token is always left to compute, since a hit gives no logits; and a request that still
        lacks prompt log-probabilities never hits, since cached positions have none.

        Returns:
            A multiple of the hit granularity, at most the number of known tokens - 1.
        """
        if not self.prefix_caching or request.lacks_prompt_logprobs:
            return 0
        num_known = request.num_prompt_tokens + request.num_output_tokens
        return self._index.match(request, self._record(request).digests, num_known - 1)

    def allocate(self, request: Request, num_tokens: int) -> list[BlockUpdate] | None:
        """Make room to write positions `num_computed_tokens` .. num_tokens-1 of a request.

        Window groups drop the blocks that the first of these positions cannot see. A block that
        is about to be written and is shared is replaced by a copy (see `take_block_copies`).

        Returns:
            What the row's tables gained; each update reaches to the table's end. None if the
            pool lacks blocks; then nothing changed.
        """
        held = self._held.get(request.request_id)
        if held is not None and num_tokens <= held.capacity:
            return []
        if held is None or not held.tables[0]:
            return self._open(request, num_tokens)
        return self._grow(request, held, num_tokens)

    def fork(self, parent: Request, child: Request) -> list[BlockUpdate]:
        """Let `child`, which holds nothing, share all blocks of `parent`, a partial last included.

        Whoever writes a shared block first gets a copy of it; the last holder writes in place.
        """
        source, target = self._held[parent.request_id], self._record(child)
        assert not any(target.tables), "a forked request starts without blocks"
        target.tables = [list(table) for table in source.tables]
        target.digests = [list(digests) for digests in source.digests]
        target.num_registered = list(source.num_registered)
        target.num_dropped = list(source.num_dropped)
        target.num_settled, target.sealed = source.num_settled, source.sealed
        source.capacity = target.capacity = 0
        for block in target.live_blocks():
            self.pool.touch(block)
        return [
            BlockUpdate(group, child.row, 0, list(table))
            for group, table in enumerate(target.tables)
        ]

    def register(self, request: Request, num_settled_tokens: int) -> None:
        """Note that a request's first tokens are in the cache for good, and index full blocks.

        Call it when the step that wrote them has settled: their ids are known and no copy on the
        device is still on its way. Does nothing for a request without blocks.
        """
        held = self._held.get(request.request_id)
        if held is None or not self.prefix_caching:
            return
        num_known = request.num_prompt_tokens + request.num_output_tokens
        held.num_settled = max(held.num_settled, min(num_settled_tokens, num_known))
        if held.sealed:
            return
        for group, size in enumerate(self._sizes):
            table, digests = held.tables[group], held.digests[group]
            num_full = min(held.num_settled // size, len(table))
            for index in range(held.num_registered[group], num_full):
                if table[index] != NULL_BLOCK and self._index.can_serve(group, index):
                    self.pool.store(
                        table[index], self._index.digest(request, digests, group, index)
                    )
            held.num_registered[group] = max(held.num_registered[group], num_full)

    def free(self, request: Request) -> None:
        """Give up all blocks of a request; does nothing if it holds none.

        Tails go to the free list first, so that a long prefix shrinks from its end.
        """
        held = self._held.pop(request.request_id, None)
        if held is None:
            return
        for table in held.tables:
            for block in reversed(table):
                if block != NULL_BLOCK:
                    self._copies.release(block)

    def take_block_copies(self) -> list[tuple[int, int]]:
        """(source, destination) blocks to copy before the next forward; hands them over once.

        No block is a destination twice or both source and destination, so order is irrelevant.
        """
        return self._copies.take()

    def reset_prefix_cache(self) -> None:
        """Make nothing hittable, neither what is cached nor what running requests continue."""
        self.pool.clear()
        for held in self._held.values():
            held.sealed = any(held.tables) or held.sealed

    def num_blocks_needed(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most, alone and token by token."""
        return sum(max_blocks_held(group, num_tokens) for group in self.layout.groups)

    @property
    def max_tokens_of_pool(self) -> int:
        """Tokens that one request can reach with the whole pool to itself."""
        return max_tokens_held(self.layout.groups, self.pool.num_blocks - 1)

    def can_hold(
        self, request: Request, num_hit_tokens: int, *, without: Iterable[Request] = ()
    ) -> bool:
        """Whether the free blocks take a request without blocks to its present length.

        Args:
            without: running requests that would give up what nobody else holds.
        """
        num_known = request.num_prompt_tokens + request.num_output_tokens
        needed, num_free = self.num_blocks_needed(num_known), self.pool.num_free_blocks
        if needed <= num_free:
            return True
        ref_counts = self.pool.ref_counts
        held_without = (self._held[other.request_id].live_blocks() for other in without)
        given_up = Counter(chain.from_iterable(held_without))
        num_free += sum(ref_counts[block] == count for block, count in given_up.items())
        digests = self._record(request).digests
        shared = sum(
            ref_counts[block] > given_up[block]
            for group in range(len(self._sizes))
            for block in self._index.hit_blocks(request, digests, group, num_hit_tokens)
        )
        return needed - shared <= num_free

    def capacity_of(self, request: Request) -> int:
        """Tokens of a request that need neither a block nor a copy until it gives up blocks."""
        return self._record(request).capacity

    def stats(self) -> KVStats:
        return KVStats(
            num_blocks=self.pool.num_blocks - 1,
            num_free_blocks=self.pool.num_free_blocks,
            num_cached_blocks=len(self.pool.cached_blocks),
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
        )

    def check_integrity(self) -> None:
        """Compare the pool with the tables.

        Raises:
            IntegrityError: with the arithmetic.
        """
        self.pool.check_integrity()
        self._copies.check_integrity()
        check_tables(self.pool, self._held, self.layout.groups, orphans=self._copies.orphans)

    def _record(self, request: Request) -> RequestBlocks:
        held = self._held.get(request.request_id)
        if held is None:
            held = self._held[request.request_id] = RequestBlocks(len(self.layout.groups))
        return held

    def _open(self, request: Request, num_tokens: int) -> list[BlockUpdate] | None:
        """First blocks of a request: those of its prefix hit, and new ones after them."""
        num_hit, pool, held = request.num_hit_tokens, self.pool, self._record(request)
        hits = [
            list(self._index.hit_blocks(request, held.digests, group, num_hit))
            for group in range(len(self._sizes))
        ]
        first_new = [
            (num_hit if group.needed_by_hits else request.num_computed_tokens) // group.block_size
            for group in self.layout.groups
        ]
        num_new = [
            max(0, -(-num_tokens // size) - first)
            for size, first in zip(self._sizes, first_new, strict=True)
        ]
        num_revived = sum(1 for blocks in hits for block in blocks if not pool.ref_counts[block])
        if num_revived + sum(num_new) > pool.num_free_blocks:
            return None
        # INVARIANT: every hit is touched before any block is allocated, which might evict it.
        for block in chain.from_iterable(hits):
            pool.touch(block)
        for group, first in enumerate(first_new):
            held.num_registered[group] = first
            held.num_dropped[group] = first - len(hits[group])
            new_blocks = [pool.allocate() for _ in range(num_new[group])]
            held.tables[group] = [NULL_BLOCK] * held.num_dropped[group] + hits[group] + new_blocks
        held.num_settled = num_hit
        self._num_hit_tokens += num_hit
        self._num_queried_tokens += request.num_prompt_tokens + request.num_output_tokens
        self._set_capacity(held)
        return [
            BlockUpdate(group, request.row, 0, list(table))
            for group, table in enumerate(held.tables)
        ]

    def _grow(
        self, request: Request, held: RequestBlocks, num_tokens: int
    ) -> list[BlockUpdate] | None:
        """More blocks for a request that has some."""
        first, allocate = request.num_computed_tokens, self.pool.allocate
        # 0 after a fork: only then can the block that is about to be written be shared.
        shared = {} if held.capacity else shared_blocks(request, held, self.layout, self.pool)
        num_missing = [
            max(0, -(-num_tokens // size) - len(table))
            for size, table in zip(self._sizes, held.tables, strict=True)
        ]
        drops = self._windows.make_room(held, first, sum(num_missing) + len(shared))
        if drops is None:
            return None
        # INVARIANT: all groups drop before any allocates, which may need what another gave up.
        dropped = self._windows.drop(held, drops)
        updates: list[BlockUpdate] = []
        for group, table in enumerate(held.tables):
            changed = dropped.get(group, len(table))
            if group in shared:
                index = shared[group]
                table[index] = self._copies.replace(table[index])
                changed = min(changed, index)
            for _ in range(num_missing[group]):
                table.append(allocate())
            if changed < len(table):
                updates.append(BlockUpdate(group, request.row, changed, table[changed:]))
        self._set_capacity(held)
        return updates

    def _set_capacity(self, held: RequestBlocks) -> None:
        held.capacity = min(
            [len(table) * size for table, size in zip(held.tables, self._sizes, strict=True)]
        )

    def _will_index(self, group: int, index: int) -> bool:
        return self.prefix_caching and self._index.can_serve(group, index)
