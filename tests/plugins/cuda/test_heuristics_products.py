"""Launches of products with codes, of rounded rows and of experts, as functions of shapes."""

import pytest
from deepinfer_cuda.heuristics_coded import coded_launch, invariant_launch, scaled_launch
from deepinfer_cuda.heuristics_moe import (
    PLAIN,
    experts_launch,
    max_tiles,
    rounded_launch,
)
from deepinfer_cuda.heuristics_moe import invariant_launch as invariant_experts

HOPPER, RTX = 232_448, 101_376
SCHEMES = ("fp8_block128", "fp8_block32", "mxfp4")
ROWS = (1, 8, 9, 16, 17, 32, 33, 128, 1000, 100_000)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiles_of_codes_suit_matrix_units(num_rows, scheme, dtype):
    for num_outputs in (64, 576, 7168, 129_280):
        launch = coded_launch(num_rows, num_outputs, 7168, dtype, scheme)
        # The weight is the left operand, of which the units take 64 rows; 16 or 32 in float32.
        assert launch.outputs * launch.groups in ((32,) if dtype == "float32" else (64, 128))
        assert launch.rows * launch.groups >= 8
        assert launch.block % 32 == 0
        assert launch.block == 128 or scheme != "fp8_block128" or dtype == "float32"


def test_few_outputs_are_shared_out_in_groups_of_columns():
    narrow, wide = (coded_launch(1, size, 7168, "bfloat16", SCHEMES[0]) for size in (576, 129_280))
    assert narrow.groups > wide.groups == 1
    assert narrow.outputs * narrow.groups == wide.outputs * wide.groups


def test_invariant_products_do_not_depend_on_outputs_and_add_up_in_one_order():
    for scheme in SCHEMES:
        launches = [invariant_launch(rows, "bfloat16", scheme) for rows in ROWS]
        assert {(launch.groups, launch.block) for launch in launches} == {(1, launches[0].block)}


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("shared_bytes", [HOPPER, RTX])
@pytest.mark.parametrize("group", [None, 32, 128])
def test_tiles_of_rounded_rows_fit(num_rows, shared_bytes, group):
    for num_outputs, size in ((576, 7168), (7168, 2048), (24_576, 1536)):
        launch = scaled_launch(num_rows, num_outputs, size, group, shared_bytes)
        in_flight = launch.num_stages - 1
        held = (launch.halves * launch.rows + launch.outputs) * (group or 128)
        assert launch.num_stages >= 2
        assert in_flight * held <= shared_bytes
        assert (launch.outputs if launch.swap else launch.rows) >= 64, "rows of the left operand"
        assert 1 <= launch.splits <= -(-size // 128)
        assert launch.splits == 1 or group == 128


def test_few_tiles_share_their_columns_and_many_do_not():
    assert scaled_launch(64, 576, 7168, 128, HOPPER).splits > 1
    assert scaled_launch(8192, 7168, 7168, 128, HOPPER).splits == 1


@pytest.mark.parametrize("num_slots", [0, 1, 7, 8, 9, 64, 1000])
@pytest.mark.parametrize("rows", [8, 16, 128])
def test_tiles_are_bounded_by_the_worst_spread(num_slots, rows):
    num_experts = 8

    def worst(left, experts):
        """One slot makes a tile; so do `rows` more of an expert that has one."""
        alone = min(left, experts)
        return alone + (left - alone) // rows

    assert max_tiles(num_slots, num_experts, rows) == worst(num_slots, num_experts)


@pytest.mark.parametrize(
    ("choose", "scheme"),
    [
        *((experts_launch, scheme) for scheme in (PLAIN, *SCHEMES)),
        *((invariant_experts, scheme) for scheme in (PLAIN, *SCHEMES)),
        (rounded_launch, "fp8_block128"),
    ],
)
@pytest.mark.parametrize("num_slots", [8, 2048, 2049, 16_384, 16_385, 1_000_000])
def test_columns_of_experts_divide_what_shares_a_scale(choose, num_slots, scheme):
    for size in (24, 64, 192, 2048):
        launch = choose(num_slots, 256, size, "bfloat16", scheme)
        assert launch.up.rows == launch.down.rows
        for product, outputs in ((launch.up, size), (launch.down, 7168)):
            assert outputs % product.columns == 0 and 128 % product.columns == 0
            assert product.depth == (64 if scheme == PLAIN else 128)


def test_rows_of_experts_are_rounded_where_experts_have_many():
    few, many = (rounded_launch(n, 256, 2048, "bfloat16", "fp8_block128") for n in (2048, 2049))
    assert (few.rounds, many.rounds) == (False, True)
    assert few == experts_launch(2048, 256, 2048, "bfloat16", "fp8_block128")


def test_invariant_experts_have_one_launch_for_any_batch():
    launches = {
        invariant_experts(n, experts, 2048, "bfloat16", PLAIN)
        for n in (1, 100_000)
        for experts in (8, 256)
    }
    assert len(launches) == 1
