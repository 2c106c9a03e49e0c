"""Batches of single tokens, made on the device from a step."""

from __future__ import annotations

import torch
from deepinfer_core.models.drafters.rows import following, rows_of
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import window_rows
from deepinfer_core.runtime.batch import AttentionBatch
from torch import Tensor


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def step(window_starts: Tensor | None = None) -> AttentionBatch:
    """Three requests with blocks of 4: positions 2 to 5, 6 and 3."""
    tables = torch.tensor([[5, 6, 0], [7, 8, 9], [3, 0, 0]], dtype=torch.int32)
    meta = AttentionMeta(
        cu_seqlens_q=int32(0, 4, 5, 6),
        seq_lens=int32(6, 7, 4),
        block_tables=tables,
        slot_mapping=int32(22, 23, 24, 25, 34, 15),
        positions=torch.tensor([2, 3, 4, 5, 6, 3]),
        block_size=4,
        query_lens=[4, 1, 1],
        seq_len_bounds=[6, 7, 4],
        window_starts=window_starts,
    )
    window_rows(meta, 3)  # leaves a plan behind
    return AttentionBatch([meta], [0], [])


def test_rows_of_a_step_stand_alone() -> None:
    """Request 0 has rejected its last token, request 1 is left out."""
    (meta,) = rows_of(step(), torch.tensor([5, 2])).groups
    assert meta.positions.tolist() == [3, 4]
    assert meta.seq_lens.tolist() == [4, 5]
    assert meta.cu_seqlens_q.tolist() == [0, 1, 2]
    assert meta.slot_mapping.tolist() == [15, 24]
    assert meta.block_tables.tolist() == [[3, 0, 0], [5, 6, 0]]
    assert (meta.query_lens, meta.max_seq_len) == ([1, 1], 7)
    assert window_rows(meta, 3).tolist() == [[13, 14, 15], [22, 23, 24]]


def test_the_next_position_is_written_where_there_is_a_block() -> None:
    (meta,) = following(rows_of(step(), torch.tensor([5, 2]))).groups
    assert meta.positions.tolist() == [4, 5]
    assert meta.slot_mapping.tolist() == [-1, 25]
    assert meta.seq_lens.tolist() == [5, 6]
    assert meta.max_seq_len == 8
    assert window_rows(meta, 3)[1].tolist() == [23, 24, 25]


def test_a_table_may_end_anywhere() -> None:
    batch, slots = rows_of(step(), torch.tensor([4])), []
    for _ in range(6):
        batch = following(batch)
        slots.append(batch.groups[0].slot_mapping.item())
    assert batch.groups[0].positions.tolist() == [12]
    assert slots == [35, 36, 37, 38, 39, -1]


def test_windows_that_were_cut_stay_cut() -> None:
    batch = rows_of(step(int32(3, 0, 0)), torch.tensor([5, 2]))
    for meta, expected in (
        (batch.groups[0], [-1, 23, 24]),
        (following(batch).groups[0], [23, 24, 25]),
    ):
        assert meta.window_starts.tolist() == [0, 3]
        assert window_rows(meta, 3)[1].tolist() == expected
