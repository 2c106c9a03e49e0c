"""From a plan of host integers to the tensors of one step.

Owns the block tables of every row on the host. Knows nothing of requests or models. All integers
of a step travel in one staging buffer, so that there is one copy to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch, LayerCache
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, BlockUpdate, StepPlan

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
        capacity = self.table.shape[1]
        if end > capacity:
            grow = max(end, 2 * capacity) - capacity
            self.table = np.pad(self.table, ((0, 0), (0, grow)))
        row = self.table[change.row]
        row[change.first_index : end] = change.block_ids
        if change.first_index == 0:
            row[end:] = 0  # what the row's last owner left

    def prefixes(self, rows: NDArray[np.int64], num_tokens: int) -> NDArray[np.int32]:
        """The rows' tables as far as `num_tokens` reach: [B, blocks]."""
        return self.table[rows, : -(-num_tokens // self.block_size)]

    def slots(
        self, token_rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Where each token's cache entry lies: [T]."""
        size = self.block_size
        return (self.table[token_rows, positions // size] * size + positions % size).astype(
            np.int32
        )


class Step(NamedTuple):
    """A built step: the model's batch, and where its logits come from."""

    batch: ForwardBatch
    last_token_indices: Tensor
    """[B] int64: index of each request's last token in the packed step."""


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
    ) -> None:
        self._layer_groups = layout.layer_groups
        self._caches = caches
        self._token_pool = token_pool
        self._device = device
        self._pin_memory = device.type != "cpu"
        self._tables = [BlockTables(max_num_seqs, group.block_size) for group in layout.groups]

    def update_blocks(self, changes: Sequence[BlockUpdate]) -> None:
        for change in changes:
            self._tables[change.group].update(change)

    def build(self, plan: StepPlan) -> Step:
        """Copy one step to the device. Tokens in flight are gathered there, not waited for."""
        rows = np.array(plan.rows, dtype=np.int64)
        starts = np.array(plan.num_computed_tokens, dtype=np.int64)
        query_lens = np.array(plan.num_scheduled_tokens, dtype=np.int64)
        token_ids = np.array(plan.token_ids, dtype=np.int32)
        ends = np.cumsum(query_lens)
        seq_lens = starts + query_lens
        num_tokens = len(token_ids)
        # A token's position is its index in the step, moved by where its request begins.
        positions = np.arange(num_tokens) + np.repeat(seq_lens - ends, query_lens)
        token_rows = np.repeat(rows, query_lens)
        in_flight = np.flatnonzero(token_ids == UNKNOWN_TOKEN_ID)

        arrays: list[NDArray[np.int32] | NDArray[np.int64]] = [
            positions,
            ends - 1,
            in_flight,
            token_rows[in_flight],
            positions[in_flight],
            token_ids,
            np.concatenate(([0], ends)).astype(np.int32),
            seq_lens.astype(np.int32),
        ]
        for tables in self._tables:
            arrays.append(tables.prefixes(rows, int(seq_lens.max())))
            arrays.append(tables.slots(token_rows, positions))
        tensors = stage(arrays, self._device, pin_memory=self._pin_memory)

        device_positions, last_tokens = tensors[:2]
        input_ids = self._fill_in(tensors[5], *tensors[2:5])
        cu_seqlens_q, device_seq_lens = tensors[6:8]
        groups = [
            AttentionMeta(
                cu_seqlens_q=cu_seqlens_q,
                seq_lens=device_seq_lens,
                block_tables=tensors[8 + 2 * g],
                slot_mapping=tensors[9 + 2 * g],
                positions=device_positions,
                block_size=tables.block_size,
                query_lens=plan.num_scheduled_tokens,
                seq_len_bounds=seq_lens.tolist(),
            )
            for g, tables in enumerate(self._tables)
        ]
        attention = AttentionBatch(groups, self._layer_groups, self._caches)
        return Step(ForwardBatch(input_ids, device_positions, attention), last_tokens)

    def _fill_in(
        self, input_ids: Tensor, unknown: Tensor, rows: Tensor, positions: Tensor
    ) -> Tensor:
        """`input_ids` with the tokens that only the device knows, at the indices `unknown`."""
        if not len(unknown):
            return input_ids
        drawn = self._token_pool.gather(rows, positions)
        if len(unknown) == len(input_ids):
            return drawn
        input_ids[unknown] = drawn
        return input_ids


def stage(
    arrays: Sequence[NDArray[np.int32] | NDArray[np.int64]],
    device: torch.device,
    *,
    pin_memory: bool,
) -> list[Tensor]:
    """Move arrays to the device in one copy; the results are views of one buffer.

    The staging buffer is fresh each time: with page-locked memory torch's caching allocator
    reuses it only once the copy has been done.
    """
    # LAYOUT: array after array, each from a whole number of 8 bytes on.
    starts = list(accumulate((-(-array.nbytes // 8) for array in arrays), initial=0))
    host = torch.empty(starts[-1], dtype=torch.int64, pin_memory=pin_memory)
    host_longs = host.numpy()
    host_ints = host_longs.view(np.int32)
    for array, start in zip(arrays, starts, strict=False):
        if array.dtype == np.int64:
            host_longs[start : start + array.size] = array.ravel()
        else:
            host_ints[2 * start : 2 * start + array.size] = array.ravel()
    staged = host.to(device, non_blocking=True)
    staged_ints = staged.view(torch.int32)
    return [
        staged[start : start + array.size].view(array.shape)
        if array.dtype == np.int64
        else staged_ints[2 * start : 2 * start + array.size].view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
