"""Hits, growth, release and bookkeeping of block tables. Blocks hold 4 tokens."""

from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import IntegrityError
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager, KVStats
from deepinfer_core.scheduling.plan import BlockUpdate, TokenLogprobs

FULL = LayerKV("full", 1, 1, 1)


def test_a_request_gets_the_blocks_its_tokens_need(workbench: Any) -> None:
    bench = workbench(num_blocks=10)
    request = bench.request(range(9))
    assert bench.compute(request, 5) == [BlockUpdate(0, 0, 0, [1, 2])]
    assert bench.compute(request, 8) == []
    assert bench.compute(request, 9) == [BlockUpdate(0, 0, 2, [3])]
    assert bench.tables(request) == [[1, 2, 3]]
    assert bench.num_blocks(request) == 3


@pytest.mark.parametrize(
    ("num_tokens", "hit"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)]
)
def test_a_hit_is_whole_blocks_and_leaves_a_token(
    workbench: Any, num_tokens: int, hit: int
) -> None:
    """A prompt that is cached whole still computes its last block: a hit gives no logits."""
    bench = workbench()
    bench.admit(bench.request(range(12)))
    assert bench.kv.match_prefix(bench.request(range(num_tokens))) == hit


def test_hit_blocks_are_shared_not_copied(workbench: Any) -> None:
    bench = workbench()
    first, second = bench.request(range(10)), bench.request([*range(8), 77])
    assert bench.admit(first) == 0
    assert bench.admit(second) == 8
    tables = bench.tables(first)[0], bench.tables(second)[0]
    assert tables[0][:2] == tables[1][:2] and tables[0][2] != tables[1][2]
    assert bench.kv.take_block_copies() == []
    bench.free(first)
    bench.free(second)
    assert bench.kv.stats().num_free_blocks == 31


def test_output_tokens_are_matched_like_prompt_tokens(workbench: Any) -> None:
    bench = workbench()
    first = bench.request(range(6))
    bench.admit(first)
    first.output_token_ids += [6, 7, 8]
    bench.compute(first, 8)
    bench.free(first)
    assert bench.kv.match_prefix(bench.request(range(20))) == 8
    assert bench.kv.match_prefix(first) == 8


def test_only_settled_blocks_are_hittable(workbench: Any) -> None:
    bench = workbench()
    request, twin = bench.request(range(12)), bench.request(range(12))
    bench.kv.allocate(request, 12)
    request.num_computed_tokens = 12
    assert bench.kv.match_prefix(twin) == 0
    bench.kv.register(request, 7)
    assert bench.kv.match_prefix(twin) == 4
    bench.kv.register(request, 12)
    assert bench.kv.match_prefix(twin) == 8


def test_tokens_the_host_does_not_know_are_never_registered(workbench: Any) -> None:
    bench = workbench()
    request = bench.request(range(6))
    bench.compute(request, 6)
    request.num_in_flight_tokens = 2
    bench.kv.allocate(request, 8)
    bench.kv.register(request, 8)
    assert bench.kv.stats().num_cached_blocks == 1


def test_equal_content_is_indexed_once(workbench: Any) -> None:
    bench = workbench()
    twins = [bench.request(range(8)), bench.request(range(8))]
    for twin in twins:
        bench.kv.allocate(twin, 8)
    for twin in twins:
        bench.kv.register(twin, 8)
    assert bench.kv.stats().num_cached_blocks == 2
    bench.free(twins[0])
    bench.free(twins[1])
    assert bench.kv.match_prefix(bench.request(range(9))) == 8


def test_prompt_logprobs_wait_for_every_position(workbench: Any) -> None:
    """Cached positions have no log-probabilities, so they are computed again, until delivered."""
    bench = workbench()
    bench.admit(bench.request(range(9)))
    request = bench.request(range(9), prompt_logprobs=2)
    assert bench.kv.match_prefix(request) == 0
    request.prompt_logprobs += [TokenLogprobs(0, 0.0, 1)] * 7
    assert bench.kv.match_prefix(request) == 0
    request.prompt_logprobs += [TokenLogprobs(0, 0.0, 1)]
    assert bench.kv.match_prefix(request) == 8
    assert bench.kv.match_prefix(bench.request([5], prompt_logprobs=0)) == 0


def test_without_prefix_caching_nothing_hits(workbench: Any) -> None:
    bench = workbench(prefix_caching=False)
    bench.admit(bench.request(range(12)))
    assert bench.kv.match_prefix(bench.request(range(12))) == 0
    assert bench.kv.stats().num_cached_blocks == 0


def test_free_blocks_stay_hittable_until_reused_tails_first(workbench: Any) -> None:
    bench = workbench(num_blocks=8)
    request = bench.request(range(16))
    bench.admit(request)
    bench.free(request)
    for num_left, hit in [(4, 12), (3, 12), (2, 8), (1, 4), (0, 0)]:
        hog = bench.use_up(num_left)
        assert bench.kv.match_prefix(bench.request(range(16))) == hit
        bench.free(hog)


def test_a_hit_saves_its_blocks_from_reuse(workbench: Any) -> None:
    """The new blocks of a request must not be taken from its own hit."""
    bench = workbench(num_blocks=5)
    first = bench.request(range(12))
    bench.admit(first)
    bench.free(first)
    second = bench.request([*range(8), 70, 71, 72, 73, 74, 75])
    assert bench.admit(second) == 8
    assert len(set(bench.tables(second)[0])) == 4


@pytest.mark.parametrize("num_free", [1, 2, 3])
def test_a_failed_admission_changes_nothing(workbench: Any, num_free: int) -> None:
    """Hit blocks on the free list count: they can't serve as new ones at the same time."""
    bench = workbench(num_blocks=8)
    first = bench.request(range(9))
    bench.admit(first)
    keep = bench.request([*range(4), 99])  # holds the first block only
    bench.admit(keep)
    bench.free(first)
    bench.use_up(num_free)
    request = bench.request([*range(8), 50, 51, 52, 53, 54, 55, 56, 57, 58])
    assert bench.take_hit(request) == 8
    before = bench.snapshot()
    assert bench.kv.allocate(request, 17) is None
    assert bench.snapshot() == before


def test_failed_growth_changes_nothing(workbench: Any) -> None:
    bench = workbench(FULL, LayerKV("window", 1, 1, 1, 5), num_blocks=12)
    request = bench.request(range(40))
    bench.compute(request, 12)
    before = bench.snapshot()
    assert bench.kv.allocate(request, 40) is None
    assert bench.snapshot() == before
    assert bench.compute(request, 13) is not None


def test_reset_forgets_and_running_requests_do_not_bring_it_back(workbench: Any) -> None:
    """What a request computes after a reset continues content from before it."""
    bench = workbench()
    running = bench.request(range(12))
    bench.compute(running, 8)
    bench.kv.reset_prefix_cache()
    assert bench.kv.match_prefix(bench.request(range(12))) == 0
    bench.compute(running, 12)
    assert bench.kv.stats().num_cached_blocks == 0
    fresh = bench.request(range(12))
    assert bench.admit(fresh) == 0
    assert bench.kv.match_prefix(bench.request(range(12))) == 8
    bench.free(running)
    bench.admit(running)
    assert bench.kv.stats().num_hit_tokens == 8


def test_free_is_idempotent_and_needs_no_blocks(workbench: Any) -> None:
    bench = workbench()
    request = bench.request(range(8))
    bench.free(request)
    bench.kv.match_prefix(request)
    bench.free(request)
    bench.compute(request)
    bench.free(request)
    bench.free(request)
    assert bench.kv._held == {}


def test_stats(workbench: Any) -> None:
    bench = workbench(num_blocks=10)
    bench.admit(bench.request(range(9)))
    bench.admit(bench.request(range(9)))
    assert bench.kv.stats() == KVStats(
        num_blocks=9,
        num_free_blocks=5,
        num_cached_blocks=2,
        num_queried_tokens=18,
        num_hit_tokens=8,
    )


def test_events_reach_the_listener(workbench: Any) -> None:
    events: list[Any] = []
    bench = workbench(num_blocks=4, listener=events.append)
    request = bench.request(range(9))
    bench.admit(request)
    bench.free(request)
    bench.use_up(1)
    bench.kv.reset_prefix_cache()
    assert [(event.kind, event.block_id) for event in events] == [
        ("stored", 1),
        ("stored", 2),
        ("removed", 2),
        ("cleared", 0),
    ]


@pytest.mark.parametrize(
    ("layers", "num_blocks", "longest"),
    [
        ([FULL], 11, 40),
        ([FULL], 2, 4),
        # 10 blocks: 2 for a window of 5, the rest for the full group.
        ([FULL, LayerKV("window", 1, 1, 1, 5)], 11, 32),
        ([FULL, LayerKV("window", 1, 1, 1, 500)], 11, 20),
        ([FULL, LayerKV("window", 1, 1, 1, 5)], 2, 0),
        ([LayerKV("window", 1, 1, 1, 5)], 3, 2**31 - 1),
        ([LayerKV("window", 1, 1, 1, 6)], 3, 8),
    ],
)
def test_max_tokens_of_pool(layers: list[LayerKV], num_blocks: int, longest: int) -> None:

    kv = KVManager(make_layout(layers, block_size=4), num_blocks)
    assert kv.max_tokens_of_pool == longest
    if 0 < longest < 100:
        assert kv.num_blocks_needed(longest) <= num_blocks - 1 < kv.num_blocks_needed(longest + 1)


def test_the_longest_request_really_fits(workbench: Any) -> None:
    for window_size in range(1, 12):
        bench = workbench(FULL, LayerKV("window", 1, 1, 1, window_size), num_blocks=14)
        longest = bench.kv.max_tokens_of_pool
        request = bench.request(range(longest + 8))
        for num_tokens in range(1, longest + 1):
            assert bench.compute(request, num_tokens) is not None, (window_size, num_tokens)


def test_can_hold_counts_what_is_shared_with_others(workbench: Any) -> None:
    """Blocks that others hold cost nothing; those on the free list are as good as any."""
    bench = workbench(num_blocks=8)
    holder = bench.request(range(9))
    bench.admit(holder)
    bench.use_up(2)
    request = bench.request([*range(8), *range(20, 28)])
    assert bench.kv.match_prefix(request) == 8
    assert bench.kv.can_hold(request, 8)
    assert not bench.kv.can_hold(request, 4)
    bench.free(holder)
    assert bench.kv.pool.num_free_blocks == 5
    longer = bench.request([*range(8), *range(20, 32)])
    assert bench.kv.can_hold(longer, bench.kv.match_prefix(longer))
    longest = bench.request([*range(8), *range(20, 36)])
    assert not bench.kv.can_hold(longest, bench.kv.match_prefix(longest))


def leak_reference(kv: KVManager) -> None:
    kv.pool.touch(1)


def swap_block(kv: KVManager) -> None:
    kv._held[0].tables[0][1] = 1


def null_in_table(kv: KVManager) -> None:
    kv._held[0].tables[0][0] = 0


def lose_table(kv: KVManager) -> None:
    del kv._held[0]


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (leak_reference, "block 1 has 2 references, but 1 tables"),
        (swap_block, r"request 0, group 0: .* \[1, 1, 3\]"),
        (null_in_table, r"request 0, group 0: .* \[0, 2, 3\]"),
        (lose_table, "block 1 has 1 references, but 0 tables"),
    ],
)
def test_integrity_names_the_place_and_both_numbers(
    workbench: Any, corrupt: Any, message: str
) -> None:
    bench = workbench()
    bench.compute(bench.request(range(12)))
    corrupt(bench.kv)
    with pytest.raises(IntegrityError, match=message):
        bench.kv.check_integrity()
