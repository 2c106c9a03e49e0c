"""From a plan of host integers to the tensors of one step.

Owns the block tables of every row on the host. Knows nothing of requests or models. All integers
of a step travel in one staging buffer, so that there is one copy to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch, LayerCache
from deepinfer_core.runtime.image_rows import ImageEncoder
from deepinfer_core.runtime.logits_rows import LogitsRows, logits_rows
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, BlockUpdate, StepPlan
from deepinfer_core.staging import IntArray, stage

if TYPE_CHECKING:
    from deepinfer_core.models.vision.tower import VisionTower

INITIAL_BLOCKS_PER_ROW = 64


class BlockTables:
    """Block tables of one layout group, a row per request; grows by doubling."""

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.block_size = block_size
        self.table: NDArray[np.int32] = np.zeros(
            (max_num_seqs, INITIAL_BLOCKS_PER_ROW), dtype=np.int32
        )

    def update(self, change: BlockUpdate) -> None:
        end = change.first_index + len(change.block_ids)
        self._grow(end)
        row = self.table[change.row]
        if len(change.block_ids) == 1 and change.first_index:
            row[change.first_index] = change.block_ids[0]  # what nearly every update is
            return
        row[change.first_index : end] = change.block_ids
        if change.first_index == 0:
            row[end:] = 0  # what the row's last owner left

    def prefixes(self, rows: NDArray[np.int64], num_tokens: int) -> NDArray[np.int32]:
        """The rows' tables as far as `num_tokens` reach: [B, blocks]."""
        num_blocks = -(-num_tokens // self.block_size)
        self._grow(num_blocks)
        return self.table[:, :num_blocks].take(rows, axis=0)

    def _grow(self, num_blocks: int) -> None:
        capacity = self.table.shape[1]
        if num_blocks > capacity:
            grow = max(num_blocks, 2 * capacity) - capacity
            self.table = np.pad(self.table, ((0, 0), (0, grow)))

    def slots(
        self, token_rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Where each token's cache entry lies: [T]."""
        size = self.block_size
        return self.table[token_rows, positions // size] * size + positions % size


class Step(NamedTuple):
    """A built step: the model's batch, and where its logits come from."""

    batch: ForwardBatch
    wanted: LogitsRows
    """Whose logits are needed; L rows."""
    sources: Tensor
    """[at most L] int64: `wanted.sources`, each once, in order."""
    sample_places: Tensor
    """[L] int64: where in the token pool the drawn tokens go."""
    drafted: Tensor
    """[num drafts] int64: index of each draft in the packed step."""
    draft_places: Tensor
    """[num drafts] int64: where in the token pool they stand until the step has drawn."""


class _Arrays(NamedTuple):
    """A step on the host, in the order in which `BatchBuilder.build` unpacks it."""

    longs: list[IntArray]
    ints: list[IntArray]
    seq_len_bounds: list[int]


class BatchBuilder:
    """Builds `ForwardBatch` from `StepPlan`."""

    def __init__(
        self,
        layout: KVLayout,
        caches: Sequence[LayerCache],
        token_pool: TokenPool,
        *,
        max_num_seqs: int,
        device: torch.device,
        tower: VisionTower | None = None,
    ) -> None:
        self._cache_groups = layout.cache_groups
        self._caches = caches
        self._token_pool = token_pool
        self._device = device
        self.images = ImageEncoder(tower, device)
        self.num_lookahead_tokens = 0
        """How far block tables reach beyond what a step writes: a drafter goes on from there."""
        self._tables = [BlockTables(max_num_seqs, group.block_size) for group in layout.groups]
        self._hold_hits = [group.needed_by_hits for group in layout.groups]
        self._num_replay_tokens = layout.num_replay_tokens

    def update_blocks(self, changes: Sequence[BlockUpdate]) -> None:
        for change in changes:
            self._tables[change.group].update(change)

    def build(self, plan: StepPlan) -> Step:
        """Copy one step to the device. Tokens in flight are gathered there, not waited for."""
        wanted = logits_rows(plan)
        arrays = self._arrays(plan, wanted)
        longs, ints = stage(arrays.longs, arrays.ints, self._device)
        positions, places, history_places, sources, sample_places, drafted, draft_places = longs
        known_ids, known_history, cu_seqlens_q, seq_lens, window_starts, *tables_and_slots = ints
        groups = [
            AttentionMeta(
                cu_seqlens_q=cu_seqlens_q,
                seq_lens=seq_lens,
                block_tables=tables_and_slots[2 * g],
                slot_mapping=tables_and_slots[2 * g + 1],
                positions=positions,
                block_size=tables.block_size,
                query_lens=plan.num_scheduled_tokens,
                seq_len_bounds=arrays.seq_len_bounds,
                window_starts=window_starts if plan.replays else None,
            )
            for g, tables in enumerate(self._tables)
        ]
        batch = ForwardBatch(
            self._fill_in(known_ids, plan.token_ids, places),
            positions,
            AttentionBatch(groups, self._cache_groups, self._caches),
            images=self.images.rows_of(plan),
            history=self._fill_in(known_history, plan.history_token_ids, history_places),
        )
        return Step(batch, wanted, sources, sample_places, drafted, draft_places)

    def _arrays(self, plan: StepPlan, wanted: LogitsRows) -> _Arrays:
        rows, starts, query_lens = np.array(
            [plan.rows, plan.num_computed_tokens, plan.num_scheduled_tokens], dtype=np.int64
        )
        token_ids = np.array(plan.token_ids, dtype=np.int32)
        ends = query_lens.cumsum()
        seq_lens = starts + query_lens
        # A token's position is its index in the step, moved by where its request begins.
        positions = np.arange(len(token_ids)) + (seq_lens - ends).repeat(query_lens)
        token_rows = rows.repeat(query_lens)

        sampled = np.array([wanted.rows, wanted.positions], dtype=np.int64)
        drafted = np.array(wanted.drafted, dtype=np.int64)
        places_of = self._token_pool.places
        history = np.array(plan.history_token_ids, dtype=np.int32).reshape(len(rows), -1)
        before = starts[:, None] + np.arange(-history.shape[1], 0)
        longs: list[IntArray] = [
            positions,
            places_of(token_rows, positions),
            places_of(rows[:, None], before),
            np.array([*dict.fromkeys(wanted.sources)], dtype=np.int64),
            places_of(*sampled),
            drafted,
            places_of(token_rows[drafted], positions[drafted]),
        ]
        hits = self._replayed_hits(plan)
        window_starts = np.maximum(hits - self._num_replay_tokens, 0)
        cu_seqlens = np.concatenate(([0], ends))
        ints: list[IntArray] = [token_ids, history, cu_seqlens, seq_lens, window_starts]
        seq_len_bounds = seq_lens.tolist()
        max_seq_len = max(seq_len_bounds)
        for tables, holds_hits in zip(self._tables, self._hold_hits, strict=True):
            slots = tables.slots(token_rows, positions)
            if holds_hits and plan.replays:
                slots[positions < hits.repeat(query_lens)] = -1  # cached already
            ints += (tables.prefixes(rows, max_seq_len + self.num_lookahead_tokens), slots)
        return _Arrays(longs, ints, seq_len_bounds)

    @staticmethod
    def _replayed_hits(plan: StepPlan) -> NDArray[np.int64]:
        """[B] tokens of prefix hits that the step computes some of again; else 0."""
        hits = np.zeros(len(plan.rows), dtype=np.int64)
        for index, num_hit_tokens in plan.replays:
            hits[index] = num_hit_tokens
        return hits

    def _fill_in(self, known_ids: Tensor, host_ids: Sequence[int], places: Tensor) -> Tensor:
        """The ids, int32, and where the host has none, what the device has drawn."""
        num_unknown = host_ids.count(UNKNOWN_TOKEN_ID)
        if not num_unknown:
            return known_ids
        drawn = self._token_pool.read(places)
        if num_unknown == len(host_ids):
            return drawn
        return torch.where(known_ids == UNKNOWN_TOKEN_ID, drawn, known_ids)
