"""Launches depend on shapes and on the device's shared memory, and on nothing else."""

import itertools

import pytest
from deepinfer_cuda.heuristics import MIN_TILE, NUM_PROCESSORS
from deepinfer_cuda.heuristics_attention import (
    LANES,
    MAX_PARTIAL_VALUES,
    MAX_SPLITS,
    DecodeLaunch,
    PrefillLaunch,
    are_lanes_shared,
    decode_launch,
    heads_of_tile,
    lanes_launch,
    prefill_launch,
)

HOPPER, AMPERE, RTX = 232_448, 166_912, 101_376
SHAPES = list(
    itertools.product((1, 2, 3, 8, 16, 64), (16, 64, 80, 128, 192, 256), ("bfloat16", "float32"))
)


def is_power_of_2(number):
    return number > 0 and number & (number - 1) == 0


def test_what_was_measured_on_an_h200_stays():
    assert prefill_launch(4, 128, "bfloat16", HOPPER) == PrefillLaunch(
        32, rows=128, keys=128, dims=128, precision="tf32", num_warps=8, num_stages=4
    )
    assert prefill_launch(4, 256, "float16", HOPPER) == PrefillLaunch(
        16, rows=64, keys=32, dims=256, precision="tf32", num_warps=4, num_stages=2
    )
    assert decode_launch(128, 8, 4, 128, "bfloat16", HOPPER) == DecodeLaunch(
        1, heads=4, rows=16, tokens=16, dims=128, prefetched=16,
        precision="tf32", num_warps=2, num_stages=4,
    )  # fmt: skip


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, RTX])
@pytest.mark.parametrize(("group", "head_dim", "dtype"), SHAPES)
def test_tiles_hold_whole_groups_and_whole_heads(group, head_dim, dtype, shared_bytes):
    chunk = prefill_launch(group, head_dim, dtype, shared_bytes)
    lanes, decode = (
        lanes_launch(group, head_dim, dtype, shared_bytes),
        decode_launch(1, 8, group, head_dim, dtype, shared_bytes),
    )
    assert decode.rows >= decode.heads * group
    sizes = [(x.rows, x.keys, x.dims) for x in (chunk, lanes)]
    sizes.append((decode.rows, decode.tokens * decode.heads, decode.dims))
    for rows, keys, dims in sizes:
        assert rows >= max(group, MIN_TILE) and dims >= max(head_dim, MIN_TILE)
        assert keys >= MIN_TILE
        assert all(map(is_power_of_2, (rows, keys, dims)))
    for launch in (chunk, lanes):
        assert launch.queries_per_tile >= 1
        assert (
            launch.queries_per_tile * group <= launch.rows < (launch.queries_per_tile + 1) * group
        )


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, RTX])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_queries_and_two_stages_of_keys_and_values_fit(head_dim, dtype, shared_bytes):
    launch = prefill_launch(4, head_dim, dtype, shared_bytes)
    rows = launch.rows + 2 * launch.keys
    assert rows * launch.dims * (4 if dtype == "float32" else 2) <= shared_bytes


def test_float32_is_not_rounded_to_tf32():
    assert prefill_launch(4, 64, "float32", HOPPER).precision == "ieee"
    assert decode_launch(4, 1, 4, 64, "float32", HOPPER).precision == "ieee"
    assert lanes_launch(4, 64, "float32", HOPPER).precision == "ieee"


@pytest.mark.parametrize("num_requests", [0, 1, 8, 100, 264, 265, 5000])
def test_a_decode_gives_every_processor_work_and_no_more_shares_than_it_can_merge(num_requests):
    launch = decode_launch(num_requests, 8, 4, 128, "bfloat16", HOPPER)
    num_programs = launch.num_splits * num_requests * 8 // launch.heads
    assert 1 <= launch.num_splits <= MAX_SPLITS
    assert launch.num_splits == MAX_SPLITS or num_programs > NUM_PROCESSORS
    assert launch.num_splits == 1 or num_programs <= 2 * NUM_PROCESSORS


@pytest.mark.parametrize(
    ("num_kv_heads", "group", "heads"),
    [(8, 4, 4), (8, 1, 8), (32, 1, 16), (6, 2, 2), (3, 3, 1), (4, 8, 2), (2, 32, 1)],
)
def test_heads_of_a_tile_divide_all_and_fit_its_rows(num_kv_heads, group, heads):
    assert heads_of_tile(num_kv_heads, group) == heads


def test_what_is_asked_for_ahead_is_as_long_as_a_prefetch():
    """A prefetch brings 1,024 bytes: four heads of 128 in two bytes each."""
    assert decode_launch(1, 8, 4, 128, "bfloat16", HOPPER).prefetched == 16
    assert decode_launch(1, 8, 4, 64, "bfloat16", HOPPER).prefetched == 0
    assert decode_launch(1, 8, 8, 128, "bfloat16", HOPPER).prefetched == 0


def test_lanes_are_shared_out_while_tiles_are_few_and_results_small():
    assert are_lanes_shared(8, 4096)
    assert not are_lanes_shared(4 * NUM_PROCESSORS, 4096)
    assert not are_lanes_shared(8, MAX_PARTIAL_VALUES + 1)
    assert is_power_of_2(LANES)
