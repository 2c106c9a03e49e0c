"""Forks, copy-on-write and windows. Blocks hold 4 tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.scheduling.plan import BlockUpdate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL = LayerKV("full", 1, 1, 1)


def window(size: int) -> LayerKV:
    return LayerKV("window", 1, 1, 1, size)


def grow(request: Any) -> None:
    """One more token, as a step draws it."""
    request.output_token_ids.append(50 + request.request_id)


def test_a_fork_shares_every_block_and_the_last_writer_writes_in_place(workbench: Any) -> None:
    bench = workbench()
    parent = bench.request(range(6))
    bench.compute(parent)
    children = []
    for _ in range(2):
        child, updates = bench.fork(parent)
        assert updates == [BlockUpdate(0, child.row, 0, [1, 2])]
        children.append(child)
    for member in (*children, parent):
        grow(member)
    assert bench.compute(children[0]) == [BlockUpdate(0, children[0].row, 1, [3])]
    assert bench.compute(children[1]) == [BlockUpdate(0, children[1].row, 1, [4])]
    assert bench.compute(parent) == []
    assert bench.kv.take_block_copies() == [(2, 3), (2, 4)]
    assert bench.kv.take_block_copies() == []
    bench.kv.check_integrity()


def test_a_fork_at_a_block_border_copies_nothing(workbench: Any) -> None:
    bench = workbench()
    parent = bench.request(range(8))
    bench.compute(parent)
    child, _ = bench.fork(parent)
    grow(child)
    assert bench.compute(child) == [BlockUpdate(0, child.row, 2, [3])]
    assert bench.kv.take_block_copies() == []


def test_a_fork_registers_its_own_continuation_only(workbench: Any) -> None:
    bench = workbench()
    parent = bench.request(range(6))
    bench.compute(parent)
    child, _ = bench.fork(parent)
    for member in (parent, child):
        member.output_token_ids += [10 + member.request_id, 11]
        bench.compute(member)
    assert bench.kv.match_prefix(bench.request([*range(6), 10, 11, 0])) == 8
    assert bench.kv.match_prefix(bench.request([*range(6), 11, 11, 0])) == 8
    assert bench.kv.stats().num_cached_blocks == 3


def test_the_source_of_a_copy_outlives_its_last_holder(workbench: Any) -> None:
    """Both writers of a shared block leave it before the copy is made; nobody may reuse it yet."""
    bench = workbench(num_blocks=6)
    parent = bench.request(range(6))
    bench.compute(parent)
    child, _ = bench.fork(parent)
    grow(child)
    bench.compute(child)
    bench.free(parent)
    hog = bench.use_up(0)
    assert 2 not in bench.tables(hog)[0]
    assert bench.kv.take_block_copies() == [(2, 3)]
    bench.kv.check_integrity()
    assert bench.kv.pool.num_free_blocks == 1


def test_a_copy_that_nobody_will_read_is_dropped(workbench: Any) -> None:
    bench = workbench()
    parent = bench.request(range(6))
    bench.compute(parent)
    child, _ = bench.fork(parent)
    grow(child)
    bench.compute(child)
    bench.free(child)
    bench.free(parent)
    assert bench.kv.take_block_copies() == []
    bench.kv.check_integrity()
    assert bench.kv.stats().num_free_blocks == bench.kv.stats().num_blocks


def test_a_copy_needs_a_free_block(workbench: Any) -> None:
    bench = workbench(num_blocks=6)
    parent = bench.request(range(6))
    bench.compute(parent)
    child, _ = bench.fork(parent)
    grow(child)
    hog = bench.use_up(0)
    before = bench.snapshot()
    assert bench.kv.allocate(child, 7) is None
    assert bench.snapshot() == before
    bench.free(hog)
    assert bench.compute(child) is not None


def test_window_blocks_are_dropped_and_stay_hittable(workbench: Any) -> None:
    """A window of 6 over blocks of 4: position 11 sees 6 .. 11, so block 0 can go."""
    bench = workbench(window(6))
    request = bench.request(range(30))
    bench.compute(request, 10)
    assert bench.compute(request, 12) == []  # nothing to allocate, so nobody looks
    assert bench.compute(request, 13) == [BlockUpdate(0, 0, 0, [0, 2, 3, 4])]
    assert bench.compute(request, 17) == [BlockUpdate(0, 0, 1, [0, 3, 4, 5])]
    assert bench.num_blocks(request) == 3
    assert bench.kv.match_prefix(bench.request(range(5))) == 4
    assert bench.kv.match_prefix(bench.request(range(9))) == 8


def test_a_window_group_holds_its_window_and_no_more(workbench: Any) -> None:
    bench = workbench(window(6), num_blocks=6)
    request = bench.request(range(400))
    for num_tokens in range(1, 400):
        assert bench.compute(request, num_tokens) is not None
        assert bench.num_blocks(request) <= 4


def test_unsettled_window_blocks_are_kept_unless_their_room_is_needed(workbench: Any) -> None:
    """Only settled blocks can be indexed, and overlap schedules before the last step settles."""
    bench = workbench(window(5), num_blocks=9)
    request = bench.request(range(60))
    bench.kv.allocate(request, 16)
    request.num_computed_tokens = 16
    assert bench.kv.allocate(request, 20) == [BlockUpdate(0, 0, 4, [5])]
    bench.kv.register(request, 16)
    assert bench.kv.match_prefix(bench.request(range(9))) == 8
    request.num_computed_tokens = 20
    (update,) = bench.kv.allocate(request, 24)
    assert (update.first_index, update.block_ids[:4]) == (0, [0, 0, 0, 0])

    tight = workbench(window(5), num_blocks=5)
    request = tight.request(range(60))
    tight.kv.allocate(request, 16)
    request.num_computed_tokens = 16
    (update,) = tight.kv.allocate(request, 20)
    assert update.first_index == 0 and update.block_ids[0] == 0
    tight.kv.check_integrity()


def test_a_hit_takes_only_the_tail_of_a_window(workbench: Any) -> None:
    bench = workbench(FULL, window(5), window(5))
    assert bench.kv.layout.hit_granularity == 8
    first = bench.request(range(25))
    bench.admit(first)
    second = bench.request(range(25))
    assert bench.admit(second) == 24
    full, tail = bench.tables(second)
    assert tail[:5] == [0] * 5 and tail[5] == bench.tables(first)[1][5]
    assert full[:3] == bench.tables(first)[0][:3]


def test_a_hit_moves_down_when_a_window_tail_is_gone(workbench: Any) -> None:
    bench = workbench(FULL, window(5), window(5), num_blocks=40)
    first = bench.request(range(33))
    bench.admit(first)
    tail = bench.tables(first)[1]
    bench.free(first)
    probe = bench.request(range(33))
    assert bench.kv.match_prefix(probe) == 32
    del bench.kv.pool.cached_blocks[bench.kv.pool._digests[tail[7]]]
    assert bench.kv.match_prefix(probe) == 24
    assert bench.kv.pool._digests[tail[4]] is None, "a tail reaches back 4 tokens: block 5 only"
    del bench.kv.pool.cached_blocks[bench.kv.pool._digests[tail[5]]]
    assert bench.kv.match_prefix(probe) == 16


def test_groups_use_what_other_groups_give_up(workbench: Any) -> None:
    """The full group grows into the block that the window group drops in the same call."""
    bench = workbench(FULL, FULL, window(3), num_blocks=8)
    assert [group.block_size for group in bench.kv.layout.groups] == [4, 8]
    request = bench.request(range(40))
    for num_tokens in (8, 16, 17, 20):
        assert bench.compute(request, num_tokens) is not None
    assert bench.kv.pool.num_free_blocks == 0
    assert [update.group for update in bench.compute(request, 21)] == [0, 1]
    assert bench.tables(request)[1][:2] == [0, 0]


@pytest.mark.parametrize("num_tokens", [5, 6, 7])
def test_windows_fork_too(workbench: Any, num_tokens: int) -> None:
    bench = workbench(window(3))
    parent = bench.request(range(num_tokens))
    for end in range(1, num_tokens + 1):
        bench.compute(parent, end)
    child, (update,) = bench.fork(parent)
    assert update.block_ids == bench.tables(parent)[0]
    grow(child)
    grow(parent)
    bench.compute(child)
    bench.compute(parent)
    assert len(bench.kv.take_block_copies()) == 1
    bench.free(parent)
    bench.free(child)
    assert bench.kv.pool.num_free_blocks == 31


def test_only_blocks_that_a_hit_can_take_are_indexed(workbench: Any) -> None:
    """Hits are multiples of 32; of a window of 6 they take the last two of its eight blocks."""
    bench = workbench(*[FULL] * 8, *[window(6)] * 64)
    assert [group.block_size for group in bench.kv.layout.groups] == [32, 4]
    request = bench.request(range(100))
    for num_tokens in range(1, 101):
        bench.compute(request, num_tokens)
    bench.free(request)
    assert bench.kv.stats().num_cached_blocks == 3 + 3 * 2
    again = bench.request(range(100))
    assert bench.admit(again) == 96
    assert bench.tables(again)[1][:22] == [0] * 22 and all(bench.tables(again)[1][22:])


def test_a_window_that_hits_do_not_need_begins_empty_behind_them(workbench: Any) -> None:
    raw = LayerKV("window", 1, 1, 1, 8, needed_by_hits=False)
    bench = workbench(FULL, window(8), raw)
    first = bench.request(range(33))
    bench.admit(first)
    assert bench.kv.stats().num_cached_blocks == 8 + 8
    second = bench.request(range(33))
    assert bench.admit(second) == 32
    full, kept, empty = bench.tables(second)
    assert full[:8] == bench.tables(first)[0][:8]
    assert kept[:6] == [0] * 6 and kept[6:8] == bench.tables(first)[1][6:8]
    assert empty[:8] == [0] * 8 and empty[8] not in bench.tables(first)[2]
    bench.free(first)
    bench.free(second)
    assert bench.kv.match_prefix(bench.request(range(33))) == 32


def test_caches_that_no_hit_needs_serve_none(workbench: Any) -> None:
    bench = workbench(LayerKV("window", 1, 1, 1, 8, needed_by_hits=False))
    bench.admit(bench.request(range(33)))
    assert bench.kv.stats().num_cached_blocks == 0
    assert bench.kv.match_prefix(bench.request(range(33))) == 0


def test_unsettled_blocks_are_kept_only_if_they_will_be_indexed(workbench: Any) -> None:
    """A chunk in flight keeps the tails before multiples of 32, and gives up the rest."""
    bench = workbench(*[FULL] * 8, *[window(6)] * 64, num_blocks=80)
    request = bench.request(range(200))
    bench.kv.allocate(request, 64)
    request.num_computed_tokens = 64
    (_, update) = bench.kv.allocate(request, 128)
    assert (update.group, update.first_index) == (1, 0)
    held = [index for index, block in enumerate(bench.tables(request)[1]) if block]
    assert held == [6, 7, *range(14, 32)]
    bench.kv.check_integrity()
    bench.kv.register(request, 64)
    assert bench.kv.match_prefix(bench.request(range(70))) == 64
    request.num_computed_tokens = 128
    bench.kv.allocate(request, 129)
    held = [index for index, block in enumerate(bench.tables(request)[1]) if block]
    assert held == [22, 23, 30, 31, 32]
    bench.kv.check_integrity()


def test_gaps_in_a_window_fork_and_are_freed(workbench: Any) -> None:
    bench = workbench(*[FULL] * 8, *[window(6)] * 64, num_blocks=80)
    parent = bench.request(range(70))
    bench.kv.allocate(parent, 64)
    parent.num_computed_tokens = 64
    bench.compute(parent, 70)
    child, _ = bench.fork(parent)
    bench.kv.check_integrity()
    grow(child)
    bench.compute(child)
    bench.kv.take_block_copies()
    bench.free(parent)
    bench.free(child)
    assert bench.kv.pool.num_free_blocks == 79


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_cached_follows_from_the_windows(workbench: Any, data: st.DataObject) -> None:
    """Whatever the chunks and however late they settle, if there is room."""
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 4, 7, 12, 30]), max_size=3, unique=True))
    layers = [FULL] * data.draw(st.sampled_from([1, 3, 8]))
    for size in sizes:
        kind = replace(window(size), needed_by_hits=data.draw(st.booleans()))
        layers += [kind] * data.draw(st.sampled_from([1, 4, 20]))
    bench = workbench(*layers, num_blocks=2000, block_size=data.draw(st.sampled_from([1, 2, 4])))
    kv, length = bench.kv, data.draw(st.integers(1, 150))
    request = bench.request(range(length))
    settled = 0
    while request.num_computed_tokens < length:
        end = min(length, request.num_computed_tokens + data.draw(st.integers(1, 40)))
        assert kv.allocate(request, end) is not None
        kv.register(request, settled)
        settled, request.num_computed_tokens = request.num_computed_tokens, end
        kv.check_integrity()
    kv.register(request, length)
    granularity = kv.layout.hit_granularity
    hits = range(granularity, length + 2 * granularity, granularity)
    expected = 0
    for group in kv.layout.groups:
        taken = set()
        for hit in hits if group.needed_by_hits else ():
            first = 0 if group.window_size is None else max(0, hit - group.window_size + 1)
            taken |= {position // group.block_size for position in range(first, hit)}
        expected += len(taken & set(range(length // group.block_size)))
    assert kv.stats().num_cached_blocks == expected
    bench.free(request)
    probe = bench.request([*range(length), 0])
    assert bench.admit(probe) == length // granularity * granularity
