"""Products with plain weights: of few rows through a kernel of our own, of more through cuBLAS."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from deepinfer_cuda.kernels.act import silu_mul
from deepinfer_cuda.kernels.norm import rms
from deepinfer_cuda.kernels.skinny import Norm, Weights, is_aligned, launch_for, multiply


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    weights = Weights(weight, bias=bias)
    launch = launch_for(x, weights, len(x))
    return linear(x, weight, bias) if launch is None else multiply(x, weights, launch)


def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.gated`."""
    weights = Weights(weight, bias=bias)
    launch = launch_for(x, weights, len(x))
    if launch is None:
        return silu_mul(linear(x, weight, bias), limit)
    return multiply(x, weights, launch, is_gated=True, limit=limit)


def normed(
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    is_gated: bool = False,
    limit: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.gemm.normed`."""
    weights = Weights(weight, bias=bias)
    launch = launch_for(x, weights, len(x))
    if launch is None or not launch.can_normalise or not _are_aligned(norm_weight, residual):
        y, total = rms(x, norm_weight, eps, residual)
        return gated(y, weight, bias, limit) if is_gated else dense(y, weight, bias), total
    total = None if residual is None else torch.empty_like(residual)
    norm = Norm(norm_weight, eps, residual, total)
    return multiply(x, weights, launch, norm=norm, is_gated=is_gated, limit=limit), total


def _are_aligned(norm_weight: Tensor, residual: Tensor | None) -> bool:
    return is_aligned(norm_weight[None]) and (residual is None or is_aligned(residual))
