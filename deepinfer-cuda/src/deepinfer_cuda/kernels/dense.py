"""Products with weights: of few rows through a kernel of our own, of more through cuBLAS."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from deepinfer_cuda.kernels.act import silu_mul
from deepinfer_cuda.kernels.skinny import launch_for, multiply


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    launch = launch_for(x, weight)
    if launch is None:
        return linear(x, weight, bias)
    return multiply(x, weight, bias, launch, is_gated=False)


def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.gated`."""
    launch = launch_for(x, weight) if limit is None else None
    if launch is None:
        return silu_mul(linear(x, weight, bias), limit)
    return multiply(x, weight, bias, launch, is_gated=True)
