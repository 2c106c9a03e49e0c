"""Specs of the rotary position embedding."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("rope.apply", major=1, tier=0, features={"interleaved", "inverse"})
def apply(
    q: Tensor,
    k: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    layout: str = "half",
    inverse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Rotate the first Dr dimensions of each head by the angle of its position.

    Args:
        q: [T, H, D], k: [T, Hk, D] or None; D >= Dr. The other dimensions pass unchanged.
        positions: [T] int64, rows of `cos_sin`.
        cos_sin: [P, Dr] float32, Dr / 2 cosines, then Dr / 2 sines.
        layout: `half` pairs dimension i with i + Dr / 2, `interleaved` pairs 2i with 2i + 1.
        inverse: rotate by the negative angle.

    Returns:
        q and k rotated, new tensors in their dtypes, computed in float32 and rounded once.
    """
