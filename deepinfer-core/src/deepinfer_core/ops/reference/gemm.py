"""References of the matrix products."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, dtype

from deepinfer_core.ops.reference.quant import BLOCK, find_scheme


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    return F.linear(x, weight, bias)


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`."""
    if find_scheme(scheme).group is None:
        product = F.linear(q.float(), weight.float())
        return (product * scales.unsqueeze(1) * weight_scales).to(out_dtype)
    return F.linear(
        q.float() * expand_blocks(scales, q.shape[1]),
        weight.float() * expand_blocks(weight_scales, *weight.shape),
    ).to(out_dtype)


def expand_blocks(scales: Tensor, *sizes: int) -> Tensor:
    """Repeat each scale over its 128 elements in the last axis, or with two sizes in both."""
    for axis, size in zip(range(-len(sizes), 0), sizes, strict=True):
        scales = scales.repeat_interleave(BLOCK, dim=axis).narrow(axis, 0, size)
    return scales
