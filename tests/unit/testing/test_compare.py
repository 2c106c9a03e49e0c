"""Tolerances tell rounding from errors."""

import pytest
import torch
from deepinfer_core.testing.compare import assert_close, assert_same_bits, tolerance

INF = float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_passes_and_four_units_do_not(dtype):
    truth = torch.rand(1000, dtype=torch.float64) + 1
    assert_close(truth.to(dtype), truth, "rounding", "y")
    unit = torch.finfo(dtype).eps
    off = (truth * (1 + (4 * unit if dtype != torch.float32 else 5e-5))).to(dtype)
    with pytest.raises(AssertionError, match=r"y: .* of 1000 elements wrong"):
        assert_close(off, truth, "rounding", "y")


def test_approximate_is_looser():
    strict, loose = (tolerance(torch.bfloat16, n) for n in ("rounding", "approximate"))
    assert loose.relative > 4 * strict.relative


def test_integers_are_exact():
    assert_close(torch.tensor([1, 2]).int(), torch.tensor([1, 2]).int(), "approximate", "ids")
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_close(torch.tensor([1, 3]).int(), torch.tensor([1, 2]).int(), "approximate", "ids")


@pytest.mark.parametrize(
    ("found", "expected", "is_right"),
    [
        (-INF, -INF, True),
        (INF, -INF, False),
        (0.0, -INF, False),
        (-INF, 0.0, False),
        (float("nan"), 0.0, False),
        (float("nan"), -INF, False),
    ],
)
def test_infinities_and_nan(found, expected, is_right):
    x, truth = torch.tensor([found, 1.0]), torch.tensor([expected, 1.0], dtype=torch.float64)
    if is_right:
        assert_close(x, truth, "rounding", "x")
    else:
        with pytest.raises(AssertionError, match=r"at \(0,\)"):
            assert_close(x, truth, "rounding", "x")


def test_shapes_are_compared():
    with pytest.raises(AssertionError, match=r"shape \(1, 2\), expected \(2,\)"):
        assert_close(torch.zeros(1, 2), torch.zeros(2, dtype=torch.float64), "rounding", "x")


def test_bits():
    x = torch.tensor([[0.0, 1.0], [float("nan"), 2.0]], dtype=torch.bfloat16)
    assert_same_bits(x, x.clone(), "x")
    assert_same_bits(x.t(), x.t().contiguous(), "x")
    with pytest.raises(AssertionError, match=r"1 of 4 elements wrong, first at \(0, 0\)"):
        assert_same_bits(x, torch.where(x == 0, -0.0, x), "x")
    with pytest.raises(AssertionError, match="dtype"):
        assert_same_bits(x, x.float(), "x")
