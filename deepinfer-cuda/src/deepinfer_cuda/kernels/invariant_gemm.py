"""Products whose bits are those of a row alone: each output is one sum, over all columns in order.

Slower than cuBLAS, which shares sums out and changes its instructions with the number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.heuristics_invariant import InvariantLaunch, invariant_launch
from deepinfer_cuda.kernels.limits import dtype_name, shared_bytes

BAND = 8
"""Tiles of rows whose programs run side by side, for the sake of the L2 cache."""


@triton.jit
def product_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    size,
    x_row_stride,
    x_group_stride,
    weight_group_stride,
    weight_row_stride,
    weight_column_stride,
    y_row_stride,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BAND: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    # LAYOUT: bands of row tiles; within one, all row tiles of an output tile, then the next.
    num_row_tiles, num_output_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(num_outputs, OUTPUTS)
    first = tl.program_id(0) // (BAND * num_output_tiles) * BAND
    place = tl.program_id(0) % (BAND * num_output_tiles)
    height = tl.minimum(num_row_tiles - first, BAND)
    rows = (first + place % height) * ROWS + tl.arange(0, ROWS)
    outputs = (place // height) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, BLOCK)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    wide_rows, wide_outputs = rows.to(tl.int64), outputs.to(tl.int64)
    x_places = x_ptr + group * x_group_stride + wide_rows[:, None] * x_row_stride + columns[None, :]
    weight_places = (
        weight_ptr
        + group * weight_group_stride
        + wide_outputs[None, :] * weight_row_stride
        + columns[:, None] * weight_column_stride
    )
    y = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in tl.range(0, size, BLOCK):
        if IS_EVEN:
            x = tl.load(x_places, mask=is_row[:, None], other=0.0)
            weight = tl.load(weight_places, mask=is_output[None, :], other=0.0)
        else:
            is_column = columns < size - start
            x = tl.load(x_places, mask=is_row[:, None] & is_column[None, :], other=0.0)
            weight_mask = is_output[None, :] & is_column[:, None]
            weight = tl.load(weight_places, mask=weight_mask, other=0.0)
        y = tl.dot(x, weight, y, input_precision=PRECISION)
        x_places += BLOCK
        weight_places += BLOCK * weight_column_stride
    if HAS_BIAS:
        y += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    y_places = y_ptr + wide_rows[:, None] * y_row_stride + group * num_outputs + outputs[None, :]
    mask = is_row[:, None] & is_output[None, :]
    tl.store(y_places, y.to(y_ptr.dtype.element_ty), mask=mask)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    return multiply(x.unsqueeze(1), weight.unsqueeze(0), bias).squeeze(1)


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.batched`."""
    return multiply(x, weight)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, launch: InvariantLaunch | None = None
) -> Tensor:
    """[T, G, K] times [G, N, K] transposed, plus bias [N] -> [T, G, N].

    Args:
        launch: None: as the shapes have it.
    """
    num_rows, num_groups, size = x.shape
    num_outputs = weight.shape[1]
    y = torch.empty((num_rows, num_groups, num_outputs), dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    x = x if x.stride(2) == 1 else x.contiguous()
    launch = launch or invariant_launch(
        num_rows, num_outputs, num_groups, dtype_name(x.dtype), shared_bytes(x.device)
    )
    num_tiles = triton.cdiv(num_rows, launch.rows) * triton.cdiv(num_outputs, launch.outputs)
    product_kernel[(num_tiles, num_groups)](
        x,
        weight,
        x if bias is None else bias,
        y,
        num_rows,
        num_outputs,
        size,
        x.stride(0),
        x.stride(1),
        *weight.stride(),
        y.stride(0),
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        BLOCK=launch.block,
        BAND=BAND,
        IS_EVEN=size % launch.block == 0,
        HAS_BIAS=bias is not None,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return y
