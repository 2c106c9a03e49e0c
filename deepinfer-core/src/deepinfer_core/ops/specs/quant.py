"""Specs of the quantisation of activations."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("quant.act", major=1, tier=0)
def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Quantise rows symmetrically.

    A group of elements shares scale = amax / qmax in float32 (1 where all are zero), and
    q = round_half_even(float32(x) / scale), so that x is about q * scale.

    Args:
        x: [T, C], finite.
        scheme: `int8_token`: int8, qmax 127, one group per row. `fp8_token`: float8 e4m3fn,
            qmax 448, one group per row. `fp8_block128`: the same in groups of 128 consecutive
            elements, the last one possibly shorter.

    Returns:
        q [T, C], and scales float32, [T] or [T, ceil(C / 128)].

    Raises:
        ValueError: the scheme is unknown.
    """
