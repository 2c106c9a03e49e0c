"""A plan's integers become the tensors that an obvious loop would give."""

import torch
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.runtime.batch_builder import BatchBuilder
from deepinfer_core.runtime.kv_cache import allocate_pool, layer_caches
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, BlockUpdate, StepPlan
from hypothesis import given, settings
from hypothesis import strategies as st

FULL = LayerKV(kind="full", num_kv_heads=2, head_dim=8, dtype_bytes=4)
WINDOW = LayerKV(kind="window", num_kv_heads=2, head_dim=8, dtype_bytes=4, window_size=32)


def make_builder(token_pool: TokenPool, *, max_num_seqs: int):
    layout = make_layout([FULL, WINDOW, FULL], block_size=4)
    pool = allocate_pool(layout, 4, torch.device("cpu"))
    caches = layer_caches(pool, layout, torch.float32)
    device = torch.device("cpu")
    return layout, BatchBuilder(
        layout, caches, token_pool, max_num_seqs=max_num_seqs, device=device
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_matches_an_obvious_loop(data):
    max_num_seqs = 6
    token_pool = TokenPool(max_num_seqs)
    layout, builder = make_builder(token_pool, max_num_seqs=max_num_seqs)
    rows = data.draw(st.permutations(range(max_num_seqs)))[: data.draw(st.integers(1, 6))]
    starts = [data.draw(st.integers(0, 300)) for _ in rows]
    query_lens = [data.draw(st.integers(1, 9)) for _ in rows]
    plan = StepPlan(step_id=0, rows=rows, num_computed_tokens=starts)
    plan.num_scheduled_tokens = query_lens
    tables = {}
    wanted_ids, in_flight = [], []
    for row, start, query_len in zip(rows, starts, query_lens, strict=True):
        for group, kind in enumerate(layout.groups):
            num_blocks = -(-(start + query_len) // kind.block_size)
            table = [1000 * group + 100 * row + i for i in range(num_blocks)]
            tables[group, row] = table
            half = num_blocks // 2
            plan.block_updates.append(BlockUpdate(group, row, 0, table[:half]))
            plan.block_updates.append(BlockUpdate(group, row, half, table[half:]))
        for position in range(start, start + query_len):
            wanted_ids.append(position % 50 + 1)
            is_last = position == start + query_len - 1
            if is_last and data.draw(st.booleans()):
                in_flight.append((row, position, position % 50 + 1))
                plan.token_ids.append(UNKNOWN_TOKEN_ID)
            else:
                plan.token_ids.append(position % 50 + 1)
    if in_flight:
        flight = torch.tensor(in_flight)
        token_pool.write(token_pool.places(flight[:, 0], flight[:, 1]), flight[:, 2].int())

    builder.update_blocks(plan.block_updates)
    plan.sample_rows, plan.sample_positions = rows[:2], [70, 3][: len(rows)]
    plan.sample_sources = [1, 1][: len(rows)] if len(rows) > 1 else [0]
    step = builder.build(plan)
    batch, sample_places = step.batch, step.sample_places

    positions = [s + i for s, n in zip(starts, query_lens, strict=True) for i in range(n)]
    token_rows = [r for r, n in zip(rows, query_lens, strict=True) for _ in range(n)]
    assert batch.input_ids.tolist() == wanted_ids
    assert batch.positions.tolist() == positions
    ends = torch.tensor(query_lens).cumsum(0)
    assert step.sources.tolist() == [ends[plan.sample_sources[0]] - 1]
    token_pool.write(sample_places, torch.tensor([41, 42][: len(rows)]).int())
    for row, position, token_id in zip(rows, [70, 3], [41, 42], strict=False):
        place = token_pool.places(torch.tensor([row]), torch.tensor([position]))
        assert token_pool.read(place).tolist() == [token_id]
    for group, meta in enumerate(batch.attention.groups):
        size = layout.groups[group].block_size
        assert meta.block_size == size
        assert meta.cu_seqlens_q.tolist() == [0, *ends.tolist()]
        seq_lens = [s + n for s, n in zip(starts, query_lens, strict=True)]
        assert meta.seq_lens.tolist() == list(meta.seq_len_bounds) == seq_lens
        assert list(meta.query_lens) == query_lens
        for index, row in enumerate(rows):
            table = tables[group, row]
            assert meta.block_tables[index, : len(table)].tolist() == table
        slots = [
            tables[group, row][p // size] * size + p % size
            for row, p in zip(token_rows, positions, strict=True)
        ]
        assert meta.slot_mapping.tolist() == slots


def test_a_step_of_tokens_in_flight_alone():
    token_pool = TokenPool(3)
    _, builder = make_builder(token_pool, max_num_seqs=3)
    builder.update_blocks([BlockUpdate(g, r, 0, [1, 2]) for g in (0, 1) for r in range(3)])
    places = token_pool.places(torch.tensor([0, 1, 2]), torch.tensor([4, 5, 6]))
    token_pool.write(places, torch.tensor([7, 8, 9]).int())
    plan = StepPlan(0, rows=[2, 0], num_computed_tokens=[6, 4], num_scheduled_tokens=[1, 1])
    plan.token_ids = [UNKNOWN_TOKEN_ID, UNKNOWN_TOKEN_ID]
    assert builder.build(plan).batch.input_ids.tolist() == [9, 7]


def test_two_built_steps_do_not_share_memory():
    """With overlap a step is built while the one before still runs."""
    _, builder = make_builder(TokenPool(2), max_num_seqs=2)
    builder.update_blocks([BlockUpdate(0, 0, 0, [1]), BlockUpdate(1, 0, 0, [1])])
    first = StepPlan(
        0, rows=[0], num_computed_tokens=[0], num_scheduled_tokens=[2], token_ids=[5, 6]
    )
    second = StepPlan(1, rows=[0], num_computed_tokens=[2], num_scheduled_tokens=[1], token_ids=[7])
    built = builder.build(first).batch
    builder.build(second)
    assert built.input_ids.tolist() == [5, 6]
    assert built.attention.groups[0].seq_lens.tolist() == [2]


def test_a_row_that_changes_hands_shows_nothing_of_its_last_owner():
    """Past its end a table is padded with the null block, also where a longer one stood."""
    _, builder = make_builder(TokenPool(2), max_num_seqs=2)
    for group in (0, 1):
        builder.update_blocks(
            [BlockUpdate(group, 0, 0, [7, 8, 9]), BlockUpdate(group, 1, 0, [4] * 9)]
        )
        builder.update_blocks([BlockUpdate(group, 0, 0, [5])])
    plan = StepPlan(
        0,
        rows=[0, 1],
        num_computed_tokens=[0, 11],
        num_scheduled_tokens=[1, 1],
        token_ids=[5, 6],
    )
    for meta in builder.build(plan).batch.attention.groups:
        first, *rest = meta.block_tables[0].tolist()
        assert first == 5
        assert rest
        assert not any(rest)


def test_a_replay_writes_no_cached_row_and_starts_its_windows_late():
    full = LayerKV(kind="full", num_kv_heads=1, head_dim=4, dtype_bytes=4)
    window = LayerKV("window", 1, 4, 4, window_size=6, allows_replay=True)
    layout = make_layout([full, window], block_size=4, bounded_replay=True)
    caches = layer_caches(allocate_pool(layout, 4, torch.device("cpu")), layout, torch.float32)
    builder = BatchBuilder(layout, caches, TokenPool(3), max_num_seqs=3, device=torch.device("cpu"))
    for group in range(2):
        for row in range(3):
            blocks = [10 * row + 1 + i for i in range(4)]
            builder.update_blocks([BlockUpdate(group, row, 0, blocks)])
    # Row 0 goes on; row 1 replays positions 3 to 7 of a hit of 8 and one more; row 2 is in its
    # replay still.
    plan = StepPlan(0, rows=[0, 1, 2], num_computed_tokens=[9, 3, 5])
    plan.num_scheduled_tokens, plan.token_ids = [1, 6, 2], [5] * 9
    plan.sample_rows, plan.sample_positions = [], []
    plan.replays = [(1, 8), (2, 8)]
    kept, rebuilt = builder.build(plan).batch.attention.groups
    assert kept.slot_mapping.tolist() == [13, *[-1] * 5, 52, -1, -1]
    assert rebuilt.slot_mapping.tolist() == [13, 47, 48, 49, 50, 51, 52, 89, 90]
    assert kept.window_starts.tolist() == rebuilt.window_starts.tolist() == [0, 3, 3]
    plan.replays = []
    plain, _ = builder.build(plan).batch.attention.groups
    assert plain.window_starts is None and plain.slot_mapping.min() >= 0
