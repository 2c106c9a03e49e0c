"""References of the normalisation ops.

A row is reduced on its own and the rest is correctly rounded arithmetic, so these are already
batch-invariant.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.rms`."""
    if residual is not None:
        x = residual = x + residual
    # The fused call with a weight would round once; checkpoints were trained on rounding twice.
    y = F.rms_norm(x, x.shape[-1:], None, eps)
    return (y if weight is None else y.mul_(weight)), residual


def layer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.layer`."""
    if residual is not None:
        x = residual = x + residual
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps), residual
