"""Specs of the activation ops."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("act.silu_mul", major=1, tier=0, features={"limit"})
def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    """Gate one half of each row by the other: silu(gate) * up.

    Args:
        x: [T, 2F]; gate = x[:, :F], up = x[:, F:]. Rows may be strided.
        limit: if given, gate is first cut to at most `limit` and up to [-limit, limit].

    Returns:
        [T, F] in the dtype of x.
    """
