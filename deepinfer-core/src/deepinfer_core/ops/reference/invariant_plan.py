"""Which cache rows the invariant attention reads, in splits anchored at absolute position 0.

Knows nothing of scores or values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.expanded_attn import ExpandedPlan
from deepinfer_core.ops.reference.kv import token_rows
from deepinfer_core.ops.reference.paged_plan import Part, rows_of, split
from deepinfer_core.plugin_api.kernel import Problem
from deepinfer_core.staging import to_device

SPLIT = 128
"""Keys of a split: products over it take longer than the calls around them."""
MAX_TILE_QUERIES = 128
MAX_TILE_PAIRS = 2**18


class KeySplits:
    """The keys of a part in splits; the first one holds the first key that a query may see."""

    def __init__(
        self, part: Part, meta: AttentionMeta, rows: Tensor, tile_queries: int, window: int | None
    ) -> None:
        num_reqs = len(part.requests)
        positions = meta.positions[rows].view(num_reqs, part.num_queries)
        self.num_splits = -(-part.num_keys // SPLIT)
        first = positions.new_zeros(num_reqs, 1)
        if window is not None:
            self.num_splits = min(self.num_splits, (window + part.num_queries - 2) // SPLIT + 2)
            first = (positions[:, :1] - window + 1).clamp_(min=0) // SPLIT
        offsets = torch.arange(self.num_splits * SPLIT, device=positions.device)
        keys = first * SPLIT + offsets
        table = meta.block_tables[to_device(part.requests, positions.device)].long()
        columns = (keys // meta.block_size).clamp_(max=table.shape[1] - 1)
        self._blocks = table.gather(1, columns)
        self._offsets = keys % meta.block_size
        self._indices: dict[tuple[int, int], Tensor] = {}

        missing = -part.num_queries % tile_queries
        queries = F.pad(positions, (0, missing)).view(-1, tile_queries, 1)
        seen = keys.view(num_reqs, self.num_splits, 1, SPLIT).transpose(0, 1)
        hidden = seen > queries
        if window is not None:
            hidden |= seen <= queries - window
        self.hidden = hidden
        """[splits, tiles, tile_queries, SPLIT]: which query of a tile does not see which key."""

    def gather(self, cache: Tensor) -> Tensor:
        """Read the keys or values, [splits, Hk, R, SPLIT, D]."""
        _, _, num_heads, head_dim = cache.shape
        shape = (self.num_splits, num_heads, self._blocks.shape[0], SPLIT, head_dim)
        view = token_rows(cache, head_dim)
        if view is None:
            picked = cache[self._blocks, self._offsets]
            by_split = picked.view(-1, self.num_splits, SPLIT, num_heads, head_dim)
            return by_split.permute(1, 3, 0, 2, 4).contiguous()
        rows, rows_per_block = view
        key = (rows_per_block, num_heads)
        if key not in self._indices:
            # LAYOUT: block * rows_per_block + offset * num_heads + head
            slots = self._blocks * rows_per_block + self._offsets * num_heads
            heads = torch.arange(num_heads, device=slots.device).view(-1, 1, 1)
            split_slots = slots.view(-1, self.num_splits, SPLIT).transpose(0, 1)
            self._indices[key] = (split_slots.unsqueeze(1) + heads).flatten()
        return rows.index_select(0, self._indices[key]).view(shape)


class InvariantPlan:
    """A step's parts and their keys, by what layers differ in."""

    def __init__(self, meta: AttentionMeta) -> None:
        self._meta = meta
        self._parts: dict[int, list[tuple[Part, Tensor]]] = {}
        self._keys: dict[tuple[int, int, int | None], KeySplits] = {}

    def parts(self, tile_queries: int) -> list[tuple[Part, Tensor]]:
        """Parts and their rows of q. Each of several requests fits one tile."""
        if tile_queries not in self._parts:
            meta = self._meta
            parts = split(
                meta.query_lens,
                meta.seq_len_bounds,
                meta.block_size,
                max_batched_queries=tile_queries,
                max_tile_queries=MAX_TILE_QUERIES // tile_queries * tile_queries,
                max_tile_pairs=MAX_TILE_PAIRS,
            )
            device = meta.positions.device
            self._parts[tile_queries] = [
                (part, rows_of(part, meta.query_lens, device)) for part in parts
            ]
        return self._parts[tile_queries]

    def keys(self, tile_queries: int, number: int, window: int | None) -> KeySplits:
        """The keys that a part reads in a layer with this window."""
        part, rows = self.parts(tile_queries)[number]
        if window is not None and window >= part.num_keys:
            window = None
        key = (tile_queries, number, window)
        if key not in self._keys:
            self._keys[key] = KeySplits(part, self._meta, rows, tile_queries, window)
        return self._keys[key]


def plan_paged(problem: Problem | None, meta: AttentionMeta) -> InvariantPlan:
    """The `plan` of the invariant `attn.paged`. Never waits for the device."""
    return InvariantPlan(meta)


def plan_expanded(problem: Problem | None, meta: AttentionMeta) -> ExpandedPlan:
    """The `plan` of the invariant `attn.mla_prefill`. Never waits for the device."""
    return ExpandedPlan(meta, plan_paged)
