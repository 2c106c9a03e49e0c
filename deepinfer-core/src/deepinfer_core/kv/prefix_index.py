"""Names for full blocks, and the longest prefix that every layout group can serve.

A digest names everything that a block's content depends on: the group's facts, and all token ids
and images from position 0 to the block's end. It is the same in every process and on every machine.
Knows no block pool beyond a mapping from digest to block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from struct import Struct

from deepinfer_core.kv.layout import KVLayout, LayerKV, LayoutGroup
from deepinfer_core.request import Request

DIGEST_BYTES = 32
_FORMAT = "deepinfer-kv-3"
"""Part of every digest; a change of page layout or hashing gets a new one."""


class BlockHasher:
    """The hash chain of one layout group.

    `root` stands before the first block; the digest of block i is
    blake2b(digest of block i-1 + token ids of block i as int32 little-endian + content of images).

    Args:
        num_replay_tokens: of the layout. What is computed behind a replay is not exact, and must
            not pass for it.
    """

    __slots__ = ("_pack", "root")

    def __init__(self, group: LayoutGroup, num_replay_tokens: int = 0) -> None:
        facts = (
            _FORMAT,
            group.kind,
            group.window_size,
            group.block_size,
            num_replay_tokens,
            *map(_content_facts, group.layer_kvs),
            *group.caches,
        )
        self.root = blake2b(repr(facts).encode(), digest_size=DIGEST_BYTES).digest()
        self._pack = Struct(f"<{group.block_size}i").pack

    def extend(self, parent: bytes, token_ids: Sequence[int], images: bytes = b"") -> bytes:
        """Digest of the block of `token_ids` (exactly one block) that follows `parent`.

        Args:
            images: what tells the images that reach into the block from others.
        """
        content = parent + self._pack(*token_ids) + images
        return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _content_facts(kv: LayerKV) -> tuple[object, ...]:
    size = (kv.num_kv_heads, kv.head_dim, kv.dtype_bytes)
    return (*size, kv.dtype, kv.num_planes, kv.tokens_per_row, kv.record)


class PrefixIndex:
    """Matches requests against the blocks that a pool can serve.

    Args:
        layout: its groups and hit granularity.
        cached_blocks: live view, digest -> block id.
    """

    def __init__(self, layout: KVLayout, cached_blocks: Mapping[bytes, int]) -> None:
        self._groups = layout.groups
        self._needed = [g for g, group in enumerate(layout.groups) if group.needed_by_hits]
        self._granularity = layout.hit_granularity
        self._num_replay_tokens = layout.num_replay_tokens
        self._hashers = [BlockHasher(group, layout.num_replay_tokens) for group in layout.groups]
        self._cached = cached_blocks

    def digest(self, request: Request, digests: list[bytes], group: int, index: int) -> bytes:
        """Digest of a request's block, all of whose token ids the host knows.

        Args:
            digests: the request's digests of this group so far; extended as far as needed, so
                each block is hashed once.
        """
        while len(digests) <= index:
            size, hasher = self._groups[group].block_size, self._hashers[group]
            start = len(digests) * size
            stop = start + size
            parent = digests[-1] if digests else hasher.root
            token_ids = request.known_token_ids(start, stop)
            images = request.image_content(start, stop)
            digests.append(hasher.extend(parent, token_ids, images))
        return digests[index]

    def can_serve(self, group: int, index: int) -> bool:
        """Whether any prefix hit takes this block of a group.

        A window serves the hits that end behind it, of which the nearest reaches back farthest.
        """
        layout = self._groups[group]
        if layout.window_size is None or not layout.needed_by_hits:
            return layout.needed_by_hits
        end = (index + 1) * layout.block_size
        nearest_hit = -(-end // self._granularity) * self._granularity
        return first_live_block(layout, nearest_hit) <= index

    def match(self, request: Request, digests: Sequence[list[bytes]], limit: int) -> int:
        """Longest cached prefix of at most `limit` tokens that every group can serve.

        A group without a window must serve [0, H), one with a window of W only the blocks that
        cover [H-W+1, H), and one that hits do not need nothing.

        Args:
            digests: one list per group, see `digest`.

        Returns:
            H, a multiple of the hit granularity; longer than what would be computed again.
        """
        hit = limit - limit % self._granularity if self._needed else 0
        for group in self._needed:
            if self._groups[group].window_size is None and hit:
                hit = self._first_gap(request, digests[group], group, hit)
        lowered = True
        while hit and lowered:
            lowered = False
            for group in self._needed:
                if self._groups[group].window_size is not None and hit:
                    served = self._window_hit(request, digests[group], group, hit)
                    lowered = lowered or served < hit
                    hit = served
        return hit if hit > self._num_replay_tokens else 0

    def hit_blocks(
        self, request: Request, digests: Sequence[list[bytes]], group: int, hit: int
    ) -> Iterator[int]:
        """Cached blocks of one group that a hit of `hit` tokens takes, up to its end."""
        layout = self._groups[group]
        if layout.needed_by_hits:
            for index in range(first_live_block(layout, hit), hit // layout.block_size):
                yield self._cached[self.digest(request, digests[group], group, index)]

    def _first_gap(self, request: Request, digests: list[bytes], group: int, hit: int) -> int:
        size = self._groups[group].block_size
        for index in range(hit // size):
            if self.digest(request, digests, group, index) not in self._cached:
                served = index * size
                return served - served % self._granularity
        return hit

    def _window_hit(self, request: Request, digests: list[bytes], group: int, hit: int) -> int:
        """The largest prefix up to `hit` whose tail this group holds.

        A gap in block m rules out every prefix from `hit` down to m's start: their tails reach
        back at least as far. So each block is looked at once.
        """
        size = self._groups[group].block_size
        index = hit // size - 1
        while hit and index >= first_live_block(self._groups[group], hit):
            if self.digest(request, digests, group, index) in self._cached:
                index -= 1
                continue
            hit = index * size
            hit -= hit % self._granularity
            index = hit // size - 1
        return hit


def first_live_block(group: LayoutGroup, position: int) -> int:
    """First block that a query at `position` can see; all before it are out of the window."""
    if group.window_size is None:
        return 0
    return max(0, position - group.window_size + 1) // group.block_size
