"""How a batch is cut: nothing lost, padding bounded, host bounds respected."""

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference import paged_plan
from deepinfer_core.ops.reference.paged_plan import (
    MAX_BATCHED_QUERIES,
    MAX_TILE_PAIRS,
    PADDING,
    PADDING_BLOCKS,
    PagedPlan,
    Scratch,
    rows_of,
    split,
)
from hypothesis import given
from hypothesis import strategies as st

BATCHES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3000)).map(lambda pair: (pair[0], sum(pair))),
    max_size=20,
)


@given(BATCHES, st.integers(1, 64))
def test_every_query_is_in_one_part_and_sees_its_keys(batch, block_size):
    query_lens = [query_len for query_len, _ in batch]
    bounds = [max(bound, 1) for _, bound in batch]
    seen = []
    for part in split(query_lens, bounds, block_size):
        rows = rows_of(part, query_lens, torch.device("cpu")).tolist()
        assert len(rows) == len(part.requests) * part.num_queries
        seen += rows
        for request in part.requests:
            last = part.first_query + part.num_queries
            assert last <= query_lens[request]
            assert part.num_keys >= bounds[request] - query_lens[request] + last
            if len(part.requests) > 1:
                assert part.num_queries == query_lens[request] <= MAX_BATCHED_QUERIES
    assert sorted(seen) == list(range(sum(query_lens)))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_padding_is_bounded(bounds):
    for part in split([1] * len(bounds), bounds, 16):
        blocks = [-(-bounds[request] // 16) for request in part.requests]
        assert max(blocks) <= max(PADDING * min(blocks), min(blocks) + PADDING_BLOCKS)


def test_equal_lengths_stay_in_order_and_in_one_part():
    (part,) = split([1, 1, 1], [40, 33, 47], 16)
    assert part.requests == [0, 1, 2]


def test_long_queries_are_cut_into_tiles_that_bound_the_scores():
    parts = split([5000], [5000], 16)
    assert all(part.num_queries * part.num_keys <= MAX_TILE_PAIRS for part in parts)
    assert [part.is_causal for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.num_keys for part in parts] == sorted(part.num_keys for part in parts)


def test_a_bound_above_the_queries_is_not_taken_for_the_length():
    """With drafts in flight the host knows an upper bound only; masks must then decide."""
    (part,) = split([30], [31], 16)
    assert not part.is_causal


def make_meta(query_lens, seq_lens, block_size=4):
    width = max(-(-n // block_size) for n in seq_lens)
    spans = [torch.arange(n - q, n) for q, n in zip(query_lens, seq_lens, strict=True)]
    tables = torch.arange(1, len(seq_lens) * width + 1).view(len(seq_lens), width).int()
    return AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens).int(),
        block_tables=tables,
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int32),
        positions=torch.cat(spans),
        block_size=block_size,
        query_lens=query_lens,
        seq_len_bounds=seq_lens,
    )


def test_keys_are_shared_by_layers_and_told_apart_by_window():
    plan = PagedPlan(make_meta([1, 1], [30, 40]))
    assert plan.keys(0, None) is plan.keys(0, None)
    assert plan.keys(0, 8) is not plan.keys(0, None)
    assert plan.keys(0, 4000) is plan.keys(0, None), "a window that hides nothing is none"


def test_a_window_reads_only_the_blocks_that_it_needs():
    plan = PagedPlan(make_meta([1], [4000]))
    assert plan.keys(0, 8).blocks.shape[1] == 3
    assert plan.keys(0, None).blocks.shape[1] == 1000


def test_large_masks_are_made_again_rather_than_kept(monkeypatch):
    plan = PagedPlan(make_meta([20], [40]))
    keys = plan.keys(0, None)
    monkeypatch.setattr(paged_plan, "MAX_CACHED_PAIRS", 10)
    first = keys.mask(torch.float32)
    assert keys.mask(torch.float32) is not first
    assert torch.equal(keys.mask(torch.float32), first)
    monkeypatch.setattr(paged_plan, "MAX_CACHED_PAIRS", 2**20)
    assert keys.mask(torch.float32) is keys.mask(torch.float32)


def test_scratch_is_reused_and_grows():
    scratch, like = Scratch(1), torch.empty(0)
    small = scratch.take("k", (4, 4), like)
    assert scratch.take("k", (2, 8), like).data_ptr() == small.data_ptr()
    assert scratch.take("v", (4, 4), like).data_ptr() != small.data_ptr()
    assert scratch.take("k", (2, 2), like, torch.float64).dtype == torch.float64
    assert scratch.take("k", (100, 100), like).shape == (100, 100)


def test_all_parts_gather_into_one_buffer():
    """A long prompt has many tiles of growing length: each keeping its own buffer adds up."""
    plan = PagedPlan(make_meta([600, 1], [600, 4000]))
    cache = torch.randn(2001, 4, 2, 8)
    starts = {
        plan.keys(part, window).gather(cache, plan.scratch, "k").data_ptr()
        for part in range(len(plan.parts))
        for window in (None, 8)
    }
    assert len(plan.parts) > 2
    assert len(starts) == 1


def test_gathered_blocks_are_those_of_the_table():
    meta = make_meta([1, 1], [9, 14])
    plan = PagedPlan(meta)
    cache = torch.randn(200, 4, 2, 8)
    gathered = plan.keys(0, None).gather(cache, plan.scratch, "k")
    for request, length in enumerate([9, 14]):
        rows = cache[meta.block_tables[request].long()].flatten(0, 1)[:length]
        assert torch.equal(gathered[request, :, :length].transpose(0, 1), rows)


def test_a_mask_is_repeated_for_the_heads_of_a_group():
    keys = PagedPlan(make_meta([2, 2], [9, 14])).keys(0, None)
    mask = keys.group_mask(torch.float32, 3)
    assert mask.shape == (2, 1, 6, keys.num_keys)
    assert torch.equal(mask[:, 0], keys.mask(torch.float32).repeat_interleave(3, dim=1))
    assert keys.group_mask(torch.float32, 3) is mask
