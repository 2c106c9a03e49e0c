"""Specs of the normalisation ops."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("norm.rms", major=1, tier=0, features={"residual"})
def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Add the residual, then scale each row to a root mean square of one.

    Args:
        x: [T, C]; rows may be strided, elements of a row may not.
        weight: [C] in the dtype of x, or None.
        eps: added to the mean of squares.
        residual: [T, C] in the dtype of x, or None.

    Returns:
        y [T, C] = weight * cast(r / sqrt(mean(r^2) + eps)), with r = x + residual rounded to the
        dtype of x, the normalisation in float32 and its result cast before the weight; and
        r [T, C], or None without a residual.

    Inputs are not modified. y aliases nothing.
    """


@op("norm.layer", major=1, tier=0, features={"residual", "bias"})
def layer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Add the residual, then bring each row to mean zero and variance one.

    Args:
        x: [T, C]; rows may be strided, elements of a row may not.
        weight, bias: [C] in the dtype of x, or None.
        eps: added to the (population) variance.
        residual: [T, C] in the dtype of x, or None.

    Returns:
        y [T, C] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias, in float32 and rounded
        once, with r = x + residual in the dtype of x; and r, or None without a residual.

    Inputs are not modified. y aliases nothing.
    """
