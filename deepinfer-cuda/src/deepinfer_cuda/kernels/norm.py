"""RMS norm, alone or behind the residual addition. One program a row: its bits are its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs


@triton.jit
def _rms(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    sum_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_start(OVERLAP)
    wait_for_inputs(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * size + columns, x, mask=mask)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / size
    y = (wide * tl.rsqrt(mean + eps)).to(x_ptr.dtype.element_ty)
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
        y = (y.to(tl.float32) * weight.to(tl.float32)).to(x_ptr.dtype.element_ty)
    tl.store(y_ptr + row * size + columns, y, mask=mask)


def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.rms`."""
    num_rows, size = x.shape
    y = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    total = torch.empty_like(y) if residual is not None else None
    if not num_rows:
        return y, total
    block = triton.next_power_of_2(size)
    _rms[(num_rows,)](
        x,
        x if residual is None else residual,
        x if weight is None else weight,
        y,
        y if total is None else total,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        BLOCK=block,
        num_warps=num_warps(block),
        **overlap(x.device),
    )
    return y, total


def num_warps(block: int) -> int:
    """Sixteen elements or so for each thread."""
    return max(1, min(16, block // 512))
