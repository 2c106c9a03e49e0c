"""Products of each group of a row with a matrix of its own: tiles of rows and outputs of a group.

Few rows are bound by reading the matrices, which lie either way around.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.heuristics_latent import BatchedLaunch, batched_launch
from deepinfer_cuda.kernels.limits import dtype_name


@triton.jit
def batched_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    size,
    x_row_stride,
    x_group_stride,
    x_column_stride,
    weight_group_stride,
    weight_row_stride,
    weight_column_stride,
    y_row_stride,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    group = tl.program_id(2).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    x_places = (
        rows[:, None].to(tl.int64) * x_row_stride
        + group * x_group_stride
        + columns[None, :] * x_column_stride
    )
    weight_places = (
        group * weight_group_stride
        + outputs[None, :] * weight_row_stride
        + columns[:, None] * weight_column_stride
    )
    y = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for block in range(BLOCKS):
        is_weight, is_x = is_output[None, :], is_row[:, None]
        if not IS_EVEN:
            is_column = block * BLOCK + columns < size
            is_weight, is_x = is_weight & is_column[:, None], is_x & is_column[None, :]
        weight = tl.load(weight_ptr + weight_places, mask=is_weight, other=0.0)
        x = tl.load(x_ptr + x_places, mask=is_x, other=0.0)
        y = tl.dot(x, weight, y, input_precision=PRECISION)
        x_places += BLOCK * x_column_stride
        weight_places += BLOCK * weight_column_stride
    places = rows[:, None].to(tl.int64) * y_row_stride + group * num_outputs + outputs[None, :]
    mask = is_row[:, None] & is_output[None, :]
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mask)


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.batched`."""
    num_rows, num_groups, size = x.shape
    y = torch.empty((num_rows, num_groups, weight.shape[1]), dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    launch = batched_launch(num_rows, weight.shape[1], size, dtype_name(x.dtype))
    if launch is None:
        torch.bmm(x.transpose(0, 1), weight.transpose(1, 2), out=y.transpose(0, 1))
        return y
    multiply(x, weight, y, launch)
    return y


def multiply(x: Tensor, weight: Tensor, y: Tensor, launch: BatchedLaunch) -> None:
    """x [T, G, K] times weight [G, N, K] transposed into y [T, G, N]."""
    num_rows, num_groups, size = x.shape
    num_outputs = weight.shape[1]
    blocks = triton.cdiv(size, launch.block)
    grid = (
        triton.cdiv(num_rows, launch.rows),
        triton.cdiv(num_outputs, launch.outputs),
        num_groups,
    )
    batched_kernel[grid](
        x,
        weight,
        y,
        num_rows,
        num_outputs,
        size,
        *x.stride(),
        *weight.stride(),
        y.stride(0),
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        BLOCK=launch.block,
        BLOCKS=blocks,
        IS_EVEN=blocks * launch.block == size,
        PRECISION=launch.precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
