"""What one request holds of the pool, and the arithmetic that tables and pool must satisfy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepinfer_core.errors import IntegrityError
from deepinfer_core.kv.block_pool import NULL_BLOCK, BlockPool
from deepinfer_core.kv.layout import KVLayout, LayoutGroup
from deepinfer_core.request import Request

MAX_TOKENS = 2**31 - 1
"""Where windows alone hold the cache, length costs nothing; positions end here anyhow."""


@dataclass(frozen=True, slots=True)
class KVStats:
    """How full the pool is, and what prefix matching saved; counts since the start."""

    num_blocks: int
    """Blocks that requests can hold; the null block is not among them."""
    num_free_blocks: int
    """Held by nobody, hittable or not."""
    num_cached_blocks: int
    """Hittable, held or not."""
    num_queried_tokens: int
    """Known tokens of requests when they were given their first blocks."""
    num_hit_tokens: int
    """Those of them whose blocks were found."""


class RequestBlocks:
    """Tables and digests of one request, one per layout group."""

    __slots__ = (
        "capacity",
        "digests",
        "num_dropped",
        "num_registered",
        "num_settled",
        "sealed",
        "tables",
    )

    def __init__(self, num_groups: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.digests: list[list[bytes]] = [[] for _ in range(num_groups)]
        self.num_dropped = [0] * num_groups
        """Leading entries per group that are the null block. A window may have more behind them,
        between blocks that are held until their content is settled."""
        self.num_registered = [0] * num_groups
        """Leading blocks per group that need no more registering."""
        self.num_settled = 0
        """Leading tokens whose content no step in flight is still writing."""
        self.sealed = False
        """The cache was reset meanwhile: what this request computes continues old content."""
        self.capacity = 0
        """Positions below this need no allocation and no copy; 0 forces a look."""

    def live_blocks(self) -> Iterator[int]:
        """Every block held, group after group."""
        for table, start in zip(self.tables, self.num_dropped, strict=True):
            yield from filter(None, table[start:])


def shared_blocks(
    request: Request, held: RequestBlocks, layout: KVLayout, pool: BlockPool
) -> dict[int, int]:
    """Group -> table index of the block that is written next, where others hold it too.

    A block without content, or whose content is a prefix hit's, is not among them.
    """
    shared = {}
    for number, group in enumerate(layout.groups):
        first = request.num_computed_tokens
        if group.needed_by_hits:
            first = max(first, request.num_hit_tokens)
        index, offset = divmod(first, group.block_size)
        if offset and pool.ref_counts[held.tables[number][index]] > 1:
            shared[number] = index
    return shared


def max_blocks_held(group: LayoutGroup, num_tokens: int) -> int:
    """Blocks of one group that a request of `num_tokens` holds at most, token by token.

    A window of W positions at any offset touches at most (W + block_size - 2) // block_size + 1
    blocks.
    """
    size = group.block_size
    num_blocks = -(-num_tokens // size)
    if group.window_size is None:
        return num_blocks
    return min(num_blocks, (group.window_size + size - 2) // size + 1)


def max_tokens_held(groups: Sequence[LayoutGroup], num_blocks: int) -> int:
    """Tokens that one request reaches, token by token, with so many blocks to itself."""

    def fits(num_tokens: int) -> bool:
        return sum(max_blocks_held(group, num_tokens) for group in groups) <= num_blocks

    low, high = 0, 1
    while fits(high):
        if high > MAX_TOKENS:
            return MAX_TOKENS
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_tables(
    pool: BlockPool,
    held: Mapping[int, RequestBlocks],
    groups: Sequence[LayoutGroup],
    *,
    orphans: Sequence[int],
) -> None:
    """Compare reference counts with the tables of all requests.

    Args:
        held: by request id.
        orphans: blocks that keep one reference until queued copies are taken.

    Raises:
        IntegrityError: names request or block and the two numbers.
    """
    expected = Counter(orphans)
    for request_id, blocks in held.items():
        for group, layout in enumerate(groups):
            table, start = blocks.tables[group], blocks.num_dropped[group]
            live = [block for block in table[start:] if block != NULL_BLOCK]
            has_gaps = layout.window_size is None and len(live) < len(table) - start
            if any(table[:start]) or has_gaps or len(set(live)) != len(live):
                raise IntegrityError(
                    f"request {request_id}, group {group}: after {start} dropped entries the "
                    f"table must hold distinct blocks, but is {table}"
                )
            expected.update(live)
    for block, count in enumerate(pool.ref_counts):
        if count != expected[block]:
            raise IntegrityError(
                f"block {block} has {count} references, but {expected[block]} tables and queued "
                f"copies hold it"
            )
