"""How the plain attention cuts a step's batch into parts, decided once and shared by layers.

Shapes come from host lists alone, which bound the lengths from above; what is visible is decided
by masks from device tensors. Knows nothing of heads, scores or values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api.kernel import Problem
from deepinfer_core.staging import to_device

MAX_BATCHED_QUERIES = 8
"""Requests with up to this many equal queries are attended to together."""
MAX_TILE_QUERIES = 512
MAX_TILE_PAIRS = 2**19
"""Queries times keys of one tile of a long query; bounds masks and scores."""
MAX_CACHED_PAIRS = 2**22
"""Masks up to this size are kept for the next layer."""
MAX_PART_KEYS = 2048
"""Keys of all requests of a part: what is gathered should still be in the caches when it is read.
Measured on a CPU, where 2048 to 4096 are best and 8192 costs a tenth more."""
PADDING = 1.3
"""Requests share a part if the longest has at most this times the blocks of the shortest, or
`PADDING_BLOCKS` more: measured on a CPU, where a call costs about as much as four blocks."""
PADDING_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Requests, or a tile of one, with equally many queries, attended to in one call."""

    requests: Sequence[int]
    first_query: int
    """Of the tile, counted within the request."""
    num_queries: int
    num_keys: int
    """Upper bound of the keys that any query here can see."""
    is_causal: bool
    """Query i sees keys 0 to i exactly: masks are not needed without a window."""


class Scratch:
    """Buffers that the layers of a step reuse: fresh pages cost as much as the sums on them.

    Args:
        num_blocks: the most that any part reads.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(
        self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A contiguous tensor of any content, which whoever takes the name next overwrites."""
        key = (name, dtype or like.dtype)
        size = math.prod(shape)
        if key not in self._buffers or self._buffers[key].numel() < size:
            self._buffers[key] = like.new_empty(size, dtype=key[1])
        return self._buffers[key][:size].view(shape)


class PartKeys:
    """Which cache rows a part reads, and which of them each query sees."""

    def __init__(self, part: Part, meta: AttentionMeta, rows: Tensor, window: int | None) -> None:
        block_size = meta.block_size
        requests = to_device(part.requests, rows.device)
        self.positions = meta.positions[rows].view(len(part.requests), part.num_queries)
        """[R, L]"""
        num_blocks = -(-part.num_keys // block_size)
        self.num_keys = part.num_keys if part.is_causal else num_blocks * block_size
        columns = torch.arange(num_blocks, device=rows.device)
        if window is not None:
            spanned = (window + part.num_queries + 2 * block_size - 3) // block_size
            columns = columns[:spanned]
            self.num_keys = min(self.num_keys, spanned * block_size)
            first = (self.positions[:, :1] - window + 1).clamp_(min=0) // block_size
            columns = first + columns
        columns = columns.expand(len(part.requests), -1)
        table = meta.block_tables[requests].long()
        self.blocks = table.gather(1, columns.clamp(max=table.shape[1] - 1))
        """[R, number of blocks]"""
        self.first_keys = columns[:, :1] * block_size
        """[R, 1] absolute position of the first key."""
        self.is_unwindowed = window is None
        self._window = window
        self._flat_blocks = self.blocks.flatten()
        self._masks: dict[torch.dtype, Tensor] = {}
        self._group_masks: dict[tuple[torch.dtype, int], Tensor] = {}
        self._places: dict[tuple[str, torch.dtype, torch.Size], tuple[Tensor, Tensor]] = {}

    def mask(self, dtype: torch.dtype) -> Tensor:
        """[R, L, num_keys]: 0 where a query sees a key, else -inf."""
        if dtype not in self._masks:
            keys = (self.first_keys + torch.arange(self.num_keys, device=self.blocks.device))[
                :, None
            ]
            queries = self.positions[:, :, None]
            hidden = keys > queries
            if self._window is not None:
                hidden |= keys <= queries - self._window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            if mask.numel() > MAX_CACHED_PAIRS:
                return mask
            self._masks[dtype] = mask
        return self._masks[dtype]

    def group_mask(self, dtype: torch.dtype, group: int) -> Tensor:
        """[R, 1, L * group, num_keys]: the mask, each query as often as a group has heads."""
        key = (dtype, group)
        if key not in self._group_masks:
            mask = self.mask(dtype)
            repeated = mask.unsqueeze(2).expand(-1, -1, group, -1)
            self._group_masks[key] = repeated.reshape(len(mask), 1, -1, self.num_keys)
        return self._group_masks[key]

    def gather(self, cache: Tensor, scratch: Scratch, name: str) -> Tensor:
        """Copy the keys or values, whole blocks at a time, into the named scratch.

        Returns:
            [R, Hk, num_keys, D]; contiguous in D only, since a token's heads lie side by side.
        """
        key = (name, cache.dtype, cache.shape[1:])
        if key not in self._places:
            # Of the largest size at once: these views stay, and must not keep outgrown buffers.
            whole = scratch.take(name, (scratch.num_blocks, *cache.shape[1:]), cache)
            out = whole[: self.blocks.numel()]
            by_request = out.view(len(self.blocks), -1, *cache.shape[2:])
            self._places[key] = out, by_request[:, : self.num_keys].transpose(1, 2)
        out, place = self._places[key]
        torch.index_select(cache, 0, self._flat_blocks, out=out)
        return place


class PagedPlan:
    """A step's parts, with their rows of q, and per window their keys."""

    def __init__(self, meta: AttentionMeta) -> None:
        self.parts = split(meta.query_lens, meta.seq_len_bounds, meta.block_size)
        self._meta = meta
        self.rows = [rows_of(part, meta.query_lens, meta.positions.device) for part in self.parts]
        """Rows of q, [R * L] int64, request by request."""
        self.is_whole_batch = len(self.parts) == 1 and self.parts[0].requests == list(
            range(meta.num_reqs)
        )
        """One part holds all rows in order, so that q and o need no gather."""
        self.scratch = Scratch(
            max(
                (len(part.requests) * -(-part.num_keys // meta.block_size) for part in self.parts),
                default=0,
            )
        )
        self._keys: dict[tuple[int, int | None], PartKeys] = {}

    def keys(self, part: int, window: int | None) -> PartKeys:
        """The keys that a part reads in a layer with this window."""
        if window is not None and window >= self.parts[part].num_keys:
            window = None
        key = (part, window)
        if key not in self._keys:
            self._keys[key] = PartKeys(self.parts[part], self._meta, self.rows[part], window)
        return self._keys[key]


def plan_paged(problem: Problem | None, meta: AttentionMeta) -> PagedPlan:
    """The `plan` of `attn.paged`. Never waits for the device."""
    return PagedPlan(meta)


def split(
    query_lens: Sequence[int],
    seq_len_bounds: Sequence[int],
    block_size: int,
    *,
    max_batched_queries: int = MAX_BATCHED_QUERIES,
    max_tile_queries: int = MAX_TILE_QUERIES,
    max_tile_pairs: int = MAX_TILE_PAIRS,
) -> list[Part]:
    """Cut a batch into parts: short queries batched by length, long ones in tiles.

    Args:
        max_batched_queries: what counts as short.
        max_tile_queries: of a long query.
        max_tile_pairs: queries times keys of a tile.
    """
    parts: list[Part] = []
    batched: dict[int, list[int]] = {}
    for request, num_queries in enumerate(query_lens):
        bound = seq_len_bounds[request]
        if num_queries > max_batched_queries:
            size = max(16, min(max_tile_queries, max_tile_pairs // bound))
            parts.extend(_tiles(request, num_queries, bound, size))
        elif num_queries:
            batched.setdefault(num_queries, []).append(request)
    for num_queries, requests in batched.items():
        for bucket in _buckets(requests, seq_len_bounds, block_size):
            longest = max(seq_len_bounds[request] for request in bucket)
            size = max(1, MAX_PART_KEYS // longest)
            parts.extend(
                Part(bucket[i : i + size], 0, num_queries, longest, is_causal=False)
                for i in range(0, len(bucket), size)
            )
    return parts


def rows_of(part: Part, query_lens: Sequence[int], device: torch.device) -> Tensor:
    """The part's rows of q, [R * L] int64, request by request."""
    starts = [0, *accumulate(query_lens)]
    first = [starts[request] + part.first_query for request in part.requests]
    return to_device(np.add.outer(first, np.arange(part.num_queries)).ravel(), device)


def _tiles(request: int, num_queries: int, bound: int, size: int) -> list[Part]:
    tiles = []
    for first in range(0, num_queries, size):
        count = min(size, num_queries - first)
        num_keys = bound - num_queries + first + count
        # A length cannot be below the queries, so here the bound is the length.
        is_causal = first == 0 and bound == num_queries
        tiles.append(Part([request], first, count, num_keys, is_causal))
    return tiles


def _buckets(
    requests: list[int], seq_len_bounds: Sequence[int], block_size: int
) -> list[list[int]]:
    """Split requests so that padding stays bounded; in the given order if one bucket will do."""
    blocks = {request: -(-seq_len_bounds[request] // block_size) for request in requests}
    if _fits_together(min(blocks.values()), max(blocks.values())):
        return [requests]
    ascending = sorted(requests, key=lambda request: blocks[request])
    buckets = [[ascending[0]]]
    for request in ascending[1:]:
        if _fits_together(blocks[buckets[-1][0]], blocks[request]):
            buckets[-1].append(request)
        else:
            buckets.append([request])
    return buckets


def _fits_together(shortest: int, longest: int) -> bool:
    return longest <= max(PADDING * shortest, shortest + PADDING_BLOCKS)
