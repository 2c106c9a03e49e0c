"""Bounded replay: windows are rebuilt from the tokens before the end of a hit. Blocks hold 4."""

from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import KVLayout, LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.kv.prefix_index import BlockHasher

FULL = LayerKV("full", 1, 1, 1)


def replayed(size: int) -> LayerKV:
    return LayerKV("window", 1, 1, 1, size, allows_replay=True)


def layout_of(*sizes: int, **options: Any) -> KVLayout:
    layers = [FULL, *map(replayed, sizes)]
    return make_layout(layers, block_size=4, bounded_replay=True, **options)


@pytest.fixture
def bench(workbench: Any) -> Any:
    """A full group, and a window of 6: a replay takes 5 tokens."""
    bench = workbench(num_blocks=40)
    bench.kv = KVManager(layout_of(6), 40)
    return bench


def test_a_replay_covers_the_longest_window_and_what_drafts_take_back() -> None:
    assert layout_of(6).num_replay_tokens == 5
    assert layout_of(6, 2, 128).num_replay_tokens == 127
    assert layout_of(128, max_rollback=12).num_replay_tokens == 139
    assert make_layout([FULL, replayed(6)], block_size=4).num_replay_tokens == 0
    assert [group.needed_by_hits for group in layout_of(6, 2).groups] == [True, False, False]


@pytest.mark.parametrize(
    "layers",
    [[FULL], [replayed(6)], [FULL, replayed(6), LayerKV("window", 1, 1, 1, 6)]],
    ids=["no window", "windows only", "one window must be exact"],
)
def test_models_that_allow_no_replay_are_refused(layers: list[LayerKV]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_layout(layers, block_size=4, bounded_replay=True)
    assert caught.value.field == "cache.bounded_replay"


def test_computing_begins_before_the_end_of_a_hit(bench: Any) -> None:
    first = bench.request(range(20))
    assert bench.admit(first) == 0
    assert bench.kv.stats().num_cached_blocks == 5, "no window among them"
    second = bench.request(range(20))
    assert bench.admit(second) == 16
    kept, rebuilt = bench.tables(second)
    assert kept[:4] == bench.tables(first)[0][:4]
    # Positions 11 and on are computed, so the block of 8 to 11 is the first.
    assert rebuilt[:2] == [0, 0] and all(rebuilt[2:])
    assert not set(rebuilt[2:]) & {*kept, *bench.tables(first)[0], *bench.tables(first)[1]}


def test_a_first_chunk_may_end_before_the_hit(bench: Any) -> None:
    """It needs room for its windows only, and grows into what is not cached later."""
    first = bench.request(range(20))
    bench.admit(first)
    second = bench.request(range(20))
    assert bench.take_hit(second) == 16 and second.num_computed_tokens == 11
    num_free = bench.kv.pool.num_free_blocks
    bench.compute(second, 12)
    assert bench.kv.pool.num_free_blocks == num_free - 1
    assert len(bench.tables(second)[0]) == 4
    bench.compute(second, 15)
    bench.compute(second, 20)
    assert [len(table) for table in bench.tables(second)] == [5, 5]
    bench.free(first)
    bench.free(second)
    assert bench.kv.pool.num_free_blocks == 39


def test_a_first_chunk_needs_its_window_block_though_the_hit_is_longer(bench: Any) -> None:
    bench.admit(bench.request(range(20)))
    second = bench.request(range(20))
    bench.take_hit(second)
    while bench.kv.pool.num_free_blocks:
        bench.kv.pool.allocate()
    before = bench.snapshot()
    assert bench.kv.allocate(second, 12) is None
    assert bench.snapshot() == before


@pytest.mark.parametrize(("num_tokens", "hit"), [(5, 0), (8, 0), (9, 8), (13, 12)])
def test_a_hit_that_would_be_computed_again_whole_is_none(
    bench: Any, num_tokens: int, hit: int
) -> None:
    bench.admit(bench.request(range(20)))
    assert bench.kv.match_prefix(bench.request(range(num_tokens))) == hit


def test_a_cached_block_is_not_copied_where_a_replay_passes(bench: Any) -> None:
    """A step of a leader and its fork is taken back to the middle of the replay."""
    bench.admit(bench.request(range(20)))
    leader = bench.request(range(20))
    bench.take_hit(leader)
    bench.compute(leader, 20)
    child, _ = bench.fork(leader)
    bench.free(child)
    leader.num_computed_tokens = 13
    assert bench.kv.allocate(leader, 20) == []
    assert bench.kv.take_block_copies() == []
    bench.kv.check_integrity()


def test_replayed_content_does_not_pass_for_exact() -> None:
    exact = make_layout([FULL, replayed(6)], block_size=4)
    ours, theirs = exact.groups[0], layout_of(6).groups[0]
    assert ours == theirs
    assert BlockHasher(ours).root != BlockHasher(theirs, layout_of(6).num_replay_tokens).root
