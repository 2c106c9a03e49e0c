"""Layer norm, alone or behind the residual addition. One program a row: its bits are its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.norm import num_warps


@triton.jit
def _layer_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    sum_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * size + columns, x, mask=mask)
    wide = x.to(tl.float32)
    centred = tl.where(mask, wide - tl.sum(wide, 0) / size, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / size + eps)
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * size + columns, y.to(y_ptr.dtype.element_ty), mask=mask)


def layer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.layer`."""
    num_rows, size = x.shape
    y = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    total = torch.empty_like(y) if residual is not None else None
    if not num_rows:
        return y, total
    block = triton.next_power_of_2(size)
    _layer_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        x if weight is None else weight,
        x if bias is None else bias,
        y,
        y if total is None else total,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=num_warps(block),
    )
    return y, total
