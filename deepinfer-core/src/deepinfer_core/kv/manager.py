"""Block tables of requests over one pool: prefix hits, growth, windows, copy-on-write, release.

Owns which request holds which block. Knows nothing of steps, rows' life or policies; it reads a
request's ids and `num_computed_tokens` and never writes to it.

    who frees a block, exactly once
      leaves a window        _drop_expired, inside allocate
      copied before a write  _make_private, inside allocate
      request gives up all   free
      source of a copy       take_block_copies, if its last holder left before the copy was taken
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deepinfer_core.kv.block_pool import NULL_BLOCK, BlockEvent, BlockPool
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.kv.prefix_index import PrefixIndex, first_live_block
from deepinfer_core.kv.tables import KVStats, RequestBlocks, check_tables, max_blocks_held
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
        self._copies: dict[int, int] = {}
        """Destination -> source of copies that no plan has taken yet."""
        self._orphans: list[int] = []
        """Sources of those copies whose last holder left; they keep one reference till then."""
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    def match_prefix(self, request: Request) -> int:
        """Tokens of a request without blocks that the cache can serve.

        To take the hit, set `num_computed_tokens` to it and call `allocate` before anything else
        changes the pool. At least one token is always left to compute, since a hit gives no
        logits; and a request that still lacks prompt log-probabilities never hits, since cached
        positions have none.

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
        return self._grow(request, self._record(request), num_tokens)

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
        for group, layout in enumerate(self.layout.groups):
            table, digests = held.tables[group], held.digests[group]
            num_full = min(held.num_settled // layout.block_size, len(table))
            for index in range(held.num_registered[group], num_full):
                if table[index] != NULL_BLOCK:
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
                    self._release(block)

    def take_block_copies(self) -> list[tuple[int, int]]:
        """(source, destination) blocks to copy before the next forward; hands them over once.

        No block is a destination twice or both source and destination, so order is irrelevant.
        """
        copies = [(source, target) for target, source in self._copies.items()]
        self._copies.clear()
        for block in self._orphans:
            self.pool.free(block)
        self._orphans.clear()
        return copies

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
        available = self.pool.num_blocks - 1
        if self.num_blocks_needed(1) > available:
            return 0
        low, high = 1, 2
        while self.num_blocks_needed(high) <= available:
            low, high = high, high * 2
            if high > 1 << 40:  # only windows: length costs nothing
                return low
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.num_blocks_needed(middle) <= available
            low, high = (middle, high) if fits else (low, middle)
        return low

    def can_hold(self, request: Request, num_hit_tokens: int) -> bool:
        """Whether the free blocks take a request without blocks to its present length."""
        num_known = request.num_prompt_tokens + request.num_output_tokens
        needed = self.num_blocks_needed(num_known)
        if needed <= self.pool.num_free_blocks:
            return True
        shared = sum(
            1 for block in self._hit_blocks(request, num_hit_tokens) if self.pool.ref_counts[block]
        )
        return needed - shared <= self.pool.num_free_blocks

    def num_blocks_of(self, request: Request) -> int:
        """Blocks that a request holds, alone or shared."""
        held = self._held.get(request.request_id)
        return 0 if held is None else sum(1 for _ in held.live_blocks())

    def block_tables(self, request: Request) -> list[list[int]]:
        """Copies of a request's tables, one per group; empty without blocks."""
        held = self._held.get(request.request_id)
        return [] if held is None else [list(table) for table in held.tables]

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
        check_tables(self.pool, self._held, orphans=self._orphans, copies=self._copies)

    def _record(self, request: Request) -> RequestBlocks:
        held = self._held.get(request.request_id)
        if held is None:
            held = self._held[request.request_id] = RequestBlocks(len(self.layout.groups))
        return held

    def _grow(
        self, request: Request, held: RequestBlocks, num_tokens: int
    ) -> list[BlockUpdate] | None:
        first = request.num_computed_tokens
        opening = not any(held.tables)
        hits = list(self._hit_blocks(request, first)) if opening else []
        limits = self._room(held, first, num_tokens, hits if opening else None)
        if limits is None:
            return None
        if opening:
            self._open(request, held, first)
        row, updates = request.row, []
        for group, layout in enumerate(self.layout.groups):
            table = held.tables[group]
            changed = self._drop_expired(held, group, limits[group])
            changed = min(changed, self._make_private(table, first, layout.block_size))
            num_missing = -(-num_tokens // layout.block_size) - len(table)
            if num_missing > 0:
                changed = min(changed, len(table))
                table.extend(self.pool.allocate() for _ in range(num_missing))
            changed = 0 if opening else changed
            if changed < len(table):
                updates.append(BlockUpdate(group, row, changed, table[changed:]))
        held.capacity = min(
            len(table) * layout.block_size
            for table, layout in zip(held.tables, self.layout.groups, strict=True)
        )
        return updates

    def _room(
        self, held: RequestBlocks, first: int, num_tokens: int, hits: list[int] | None
    ) -> list[int] | None:
        """How far each group may drop blocks so that the rest fits; None if it can't.

        Blocks out of the window are kept until settled, since only then can they be indexed, but
        not at the price of anything else.
        """
        ref_counts = self.pool.ref_counts
        needed = sum(1 for block in hits or () if ref_counts[block] == 0)
        seen_from, settled = [], []
        for group, layout in enumerate(self.layout.groups):
            table, size = held.tables[group], layout.block_size
            num_present = len(table) if hits is None else first // size
            needed += max(0, -(-num_tokens // size) - num_present)
            needed += (
                first % size != 0
                and first // size < len(table)
                and (ref_counts[table[first // size]] > 1)
            )
            seen_from.append(first_live_block(layout, first))
            settled.append(min(seen_from[-1], held.num_settled // size))
        for limits in (settled, seen_from) if self.prefix_caching else (seen_from,):
            if needed <= self.pool.num_free_blocks + self._num_droppable(held, limits):
                return limits
        return None

    def _num_droppable(self, held: RequestBlocks, limits: list[int]) -> int:
        sources = set(self._copies.values())
        return sum(
            self.pool.ref_counts[block] == 1 and block not in sources
            for table, start, stop in zip(held.tables, held.num_dropped, limits, strict=True)
            for block in table[start:stop]
        )

    def _open(self, request: Request, held: RequestBlocks, num_hit_tokens: int) -> None:
        for group, layout in enumerate(self.layout.groups):
            start = first_live_block(layout, num_hit_tokens)
            stop = num_hit_tokens // layout.block_size
            held.tables[group] = [NULL_BLOCK] * min(start, stop)
            held.num_dropped[group] = min(start, stop)
            held.num_registered[group] = stop
        # INVARIANT: every hit is touched before any block is allocated, which might evict it.
        for group, table in enumerate(held.tables):
            for block in self._group_hits(request, group, num_hit_tokens):
                self.pool.touch(block)
                table.append(block)
        held.num_settled = num_hit_tokens
        self._num_hit_tokens += num_hit_tokens
        self._num_queried_tokens += request.num_prompt_tokens + request.num_output_tokens

    def _hit_blocks(self, request: Request, num_hit_tokens: int) -> Iterator[int]:
        for group in range(len(self.layout.groups)):
            yield from self._group_hits(request, group, num_hit_tokens)

    def _group_hits(self, request: Request, group: int, num_hit_tokens: int) -> Iterator[int]:
        layout, digests = self.layout.groups[group], self._record(request).digests[group]
        start, stop = first_live_block(layout, num_hit_tokens), num_hit_tokens // layout.block_size
        for index in range(start, stop):
            yield self.pool.cached_blocks[self._index.digest(request, digests, group, index)]

    def _drop_expired(self, held: RequestBlocks, group: int, limit: int) -> int:
        """Give up blocks before `limit`; returns the first table index that changed."""
        table, start = held.tables[group], held.num_dropped[group]
        limit = min(limit, len(table))
        if limit <= start:
            return len(table)
        for index in range(start, limit):
            self._release(table[index])
            table[index] = NULL_BLOCK
        held.num_dropped[group] = limit
        return start

    def _make_private(self, table: list[int], first: int, block_size: int) -> int:
        """Copy the block that `first` falls into if others hold it; returns the changed index."""
        index = first // block_size
        if first % block_size == 0 or index >= len(table):
            return len(table)
        block = table[index]
        if self.pool.ref_counts[block] == 1:
            return len(table)
        assert block not in self._copies, "a block is copied one step after it was made"
        table[index] = self.pool.allocate()
        self._copies[table[index]] = block
        self.pool.free(block)
        return index

    def _release(self, block: int) -> None:
        if self._copies and self.pool.ref_counts[block] == 1:
            if block in self._copies:
                del self._copies[block]  # nobody will read the copy
            elif block in self._copies.values():
                self._orphans.append(block)
                return
        self.pool.free(block)
