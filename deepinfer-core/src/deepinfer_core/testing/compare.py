"""Comparison of what a kernel gave with the truth, by tolerance class.

The class comes from what the kernel claims of its numerics, the unit from the dtype of the output.
A tolerance has a part relative to each element, and one relative to the largest element of the
output, because sums cancel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer_core.plugin_api.kernel import Numerics


class Tolerance(NamedTuple):
    """|actual - expected| <= relative * |expected| + of_scale * max |expected|."""

    relative: float
    of_scale: float


_ROUNDING = {
    torch.float64: Tolerance(1e-12, 1e-12),
    # Sums of a few thousand float32 products in any order.
    torch.float32: Tolerance(1e-5, 2e-6),
    # One and a half units: two roundings of a result. Half a unit of scale: operands of a second
    # product, such as attention weights, rounded to the dtype.
    torch.bfloat16: Tolerance(1.5 * 2**-7, 0.5 * 2**-7),
    torch.float16: Tolerance(1.5 * 2**-10, 0.5 * 2**-10),
}
_APPROXIMATE_FACTOR = 16


def tolerance(dtype: torch.dtype, numerics: Numerics) -> Tolerance:
    """How far an output of this dtype may be from the truth.

    `exact` kernels are held to the bits of the reference besides; see `assert_same_bits`.
    """
    relative, of_scale = _ROUNDING[dtype]
    factor = _APPROXIMATE_FACTOR if numerics == "approximate" else 1
    return Tolerance(relative * factor, of_scale * factor)


def assert_close(actual: Tensor, expected: Tensor, numerics: Numerics, what: str) -> None:
    """Compare an output with the truth.

    Args:
        expected: float64 on the CPU, compared within tolerance; or integers, compared exactly.
        what: named in the error, such as `o`.

    Raises:
        AssertionError: says how far, how far is allowed, and where.
    """
    assert actual.shape == expected.shape, (
        f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    found = actual.detach().cpu()
    if not expected.is_floating_point():
        wrong = found != expected
        assert not wrong.any(), f"{what}: {_describe(found, expected, wrong)}"
        return
    assert found.is_floating_point(), f"{what}: dtype {found.dtype}, expected floating point"
    allowed = tolerance(found.dtype, numerics)
    found = found.double()
    finite = expected.isfinite()
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    bound = (allowed.relative * expected.abs() + allowed.of_scale * scale).where(finite, 0.0)
    # `not (distance <= bound)` also catches nan; equal infinities are right.
    wrong = ~((found - expected).abs() <= bound) & (found != expected)
    assert not wrong.any(), f"{what}: {_describe(found, expected, wrong)}, allowed {allowed}"


def assert_same_bits(actual: Tensor, expected: Tensor, what: str) -> None:
    """Compare two outputs bit by bit.

    Raises:
        AssertionError: says how many differ, and the first.
    """
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype} and {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{what}: shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    )
    found, wanted = actual.detach().cpu().contiguous(), expected.detach().cpu().contiguous()
    if not found.numel() or torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)):
        return
    size = found.element_size()
    differs = found.reshape(-1, 1).view(torch.uint8) != wanted.reshape(-1, 1).view(torch.uint8)
    wrong = differs.view(-1, size).any(dim=1).view(found.shape)
    raise AssertionError(f"{what}: bits differ, {_describe(found, wanted, wrong)}")


def _describe(found: Tensor, expected: Tensor, wrong: Tensor) -> str:
    places = wrong.nonzero()
    place = tuple(places[0].tolist())
    return (
        f"{len(places)} of {wrong.numel()} elements wrong, first at {place}: "
        f"{found[place].item()} instead of {expected[place].item()}"
    )
