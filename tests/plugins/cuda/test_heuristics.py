"""Launches depend on shapes and on the device's shared memory, and on nothing else."""

import itertools

import pytest
from deepinfer_cuda.heuristics import (
    MAX_SPLITS,
    MIN_TILE,
    NUM_PROCESSORS,
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
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
    assert decode_launch(8, 4, 128, "bfloat16") == DecodeLaunch(
        33, rows=16, keys=64, dims=128, precision="tf32", num_warps=2, num_stages=2
    )


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, RTX])
@pytest.mark.parametrize(("group", "head_dim", "dtype"), SHAPES)
def test_tiles_hold_whole_groups_and_whole_heads(group, head_dim, dtype, shared_bytes):
    launches = [
        prefill_launch(group, head_dim, dtype, shared_bytes),
        decode_launch(8, group, head_dim, dtype),
    ]
    for launch in launches:
        assert launch.rows >= max(group, MIN_TILE) and launch.dims >= max(head_dim, MIN_TILE)
        assert all(map(is_power_of_2, (launch.rows, launch.keys, launch.dims)))
    queries = launches[0].queries_per_tile
    assert queries >= 1
    assert queries * group <= launches[0].rows < (queries + 1) * group


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, RTX])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_queries_and_two_stages_of_keys_and_values_fit(head_dim, dtype, shared_bytes):
    launch = prefill_launch(4, head_dim, dtype, shared_bytes)
    rows = launch.rows + 2 * launch.keys
    assert rows * launch.dims * (4 if dtype == "float32" else 2) <= shared_bytes


def test_float32_is_not_rounded_to_tf32():
    assert prefill_launch(4, 64, "float32", HOPPER).precision == "ieee"
    assert decode_launch(4, 4, 64, "float32").precision == "ieee"


def test_a_decode_gives_every_processor_work_and_no_more_shares_than_it_can_merge():
    for num_tiles in (0, 1, 8, 100, 264, 265, 5000):
        splits = decode_launch(num_tiles, 4, 128, "bfloat16").num_splits
        assert 1 <= splits <= MAX_SPLITS
        assert splits == MAX_SPLITS or splits * num_tiles >= 2 * NUM_PROCESSORS
    assert decode_launch(5000, 4, 128, "bfloat16").num_splits == 1
