"""Lists of rows against loops over tokens, with and without replayed prefixes."""

from __future__ import annotations

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import (
    batch_of,
    closed_groups,
    compressed_rows,
    raw_rows,
    window_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BLOCK = 4


@st.composite
def batches(draw: st.DrawFn) -> tuple[AttentionMeta, list[tuple[int, int, int, int]]]:
    """A meta, and of each request the first position, the end, the hit and the windows' start."""
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        first, count = draw(st.integers(0, 30)), draw(st.integers(1, 13))
        hit = 4 * draw(st.integers(0, 10))
        start = draw(st.integers(0, first)) if hit > first else 0
        requests.append((first, first + count, hit, start))
    query_lens = [end - first for first, end, _, _ in requests]
    ends = [end for _, end, _, _ in requests]
    width = -(-max(ends) // BLOCK)
    tables = torch.arange(width * len(requests), 0, -1).view(len(requests), width).int()
    positions = [position for first, end, _, _ in requests for position in range(first, end)]
    slots = [
        -1 if position < hit else slot(tables, request, position)
        for request, (first, end, hit, _) in enumerate(requests)
        for position in range(first, end)
    ]
    has_replays = any(hit > first for first, _, hit, _ in requests)
    starts = torch.tensor([start for _, _, _, start in requests], dtype=torch.int32)
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
        positions=torch.tensor(positions),
        block_size=BLOCK,
        query_lens=query_lens,
        seq_len_bounds=ends,
        window_starts=starts if has_replays else None,
    )
    return meta, requests


def slot(tables: torch.Tensor, request: int, position: int) -> int:
    return int(tables[request, position // BLOCK]) * BLOCK + position % BLOCK


@given(batches(), st.sampled_from([1, 3, 8]))
@settings(deadline=None)
def test_windows_reach_back_to_where_the_replay_began(
    batch: tuple[AttentionMeta, list[tuple[int, int, int, int]]], size: int
) -> None:
    meta, requests = batch
    expected = [
        [
            slot(meta.block_tables, request, seen) if seen >= start else -1
            for seen in range(position - size + 1, position + 1)
        ]
        for request, (first, end, _, start) in enumerate(requests)
        for position in range(first, end)
    ]
    assert window_rows(meta, size).tolist() == expected


@given(batches(), st.sampled_from([1, 2, 4]))
@settings(deadline=None)
def test_all_complete_rows_are_seen_cached_or_not(
    batch: tuple[AttentionMeta, list[tuple[int, int, int, int]]], ratio: int
) -> None:
    meta, requests = batch
    num_rows = meta.max_seq_len // ratio
    expected = [
        [
            slot(meta.block_tables, request, row * ratio) // ratio
            if (row + 1) * ratio - 1 <= position
            else -1
            for row in range(num_rows)
        ]
        for request, (first, end, _, _) in enumerate(requests)
        for position in range(first, end)
    ]
    assert compressed_rows(meta, ratio).tolist() == expected


@given(batches(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
@settings(deadline=None)
def test_groups_that_close_are_written_unless_they_are_cached(
    batch: tuple[AttentionMeta, list[tuple[int, int, int, int]]], ratio: int, num_groups: int
) -> None:
    meta, requests = batch
    expected = []
    for request, (first, end, hit, start) in enumerate(requests):
        for position in range(max(first, hit), end):
            if position % ratio == ratio - 1:
                group = position // ratio
                members = range((group - num_groups + 1) * ratio, (group + 1) * ratio)
                expected.append(
                    (
                        request,
                        group * ratio,
                        slot(meta.block_tables, request, group * ratio) // ratio,
                        [
                            slot(meta.block_tables, request, member) if member >= start else -1
                            for member in members
                        ],
                    )
                )
    closed = closed_groups(meta, ratio)
    members = raw_rows(meta, closed, ratio, num_groups)
    found = zip(
        closed.requests.tolist(),
        closed.positions.tolist(),
        closed.slots.tolist(),
        members.tolist(),
        strict=True,
    )
    assert [entry for entry in found if entry[2] >= 0] == expected
    assert len(closed.slots) == sum(-(-count // ratio) for count in meta.query_lens)
    starts = [requests[request][3] for request in closed.requests.tolist()]
    ends = [last * ratio for last in (closed.groups + 1).tolist()]
    for row, start, end in zip(members.tolist(), starts, ends, strict=True):
        before = start - (end - len(row))
        assert row[: max(0, before)] == [-1] * min(len(row), max(0, before))


@given(batches(), st.data())
@settings(deadline=None)
def test_requests_of_a_batch_are_a_batch(
    batch: tuple[AttentionMeta, list[tuple[int, int, int, int]]], data: st.DataObject
) -> None:
    meta, requests = batch
    numbers = st.integers(0, len(requests) - 1)
    picked = data.draw(st.lists(numbers, min_size=1, unique=True))
    rows, part = batch_of(meta, picked)
    spans = [range(*requests[number][:2]) for number in picked]
    assert part.positions.tolist() == [position for taken in spans for position in taken]
    assert meta.positions[rows].tolist() == part.positions.tolist()
    assert (
        part.cu_seqlens_q.diff().tolist()
        == list(part.query_lens)
        == [len(taken) for taken in spans]
    )
    assert part.seq_lens.tolist() == list(part.seq_len_bounds) == [taken.stop for taken in spans]
    slots = [
        -1 if position < requests[number][2] else slot(part.block_tables, row, position)
        for row, (number, taken) in enumerate(zip(picked, spans, strict=True))
        for position in taken
    ]
    assert part.slot_mapping.tolist() == slots
    if meta.window_starts is not None:
        assert part.window_starts is not None
        assert part.window_starts.tolist() == [requests[number][3] for number in picked]
    assert batch_of(meta, picked)[1] is part  # so that layers share its plans
