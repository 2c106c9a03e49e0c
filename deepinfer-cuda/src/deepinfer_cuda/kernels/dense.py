"""Products with plain weights: of few rows through a kernel of our own, of more through cuBLAS."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from deepinfer_cuda.kernels.act import silu_mul
from deepinfer_cuda.kernels.skinny import Weights, launch_for, multiply


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
