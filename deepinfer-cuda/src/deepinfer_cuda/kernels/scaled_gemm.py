"""Products of rounded rows with codes: eight-bit operands, sums of a group scaled in float32.

The matrix units of 9.0 add eight-bit products with few bits, so no group's sum goes on into the
next (arXiv:2412.19437, section 3.3.2). Where tiles are too few to occupy the device, programs share
the groups of one, and a second kernel adds their sums up in order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, dtype
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer_cuda.heuristics_coded import ScaledLaunch, scaled_launch
from deepinfer_cuda.kernels.coded_gemm import BAND, tile_of
from deepinfer_cuda.kernels.limits import shared_bytes
from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs
from deepinfer_cuda.kernels.quant import SCHEMES

OLDEST_DESCRIPTORS = (9, 0)
"""Compute capability from which an engine of its own copies tiles."""
TOKEN_STEP = 128
"""Columns at a time where a row has one scale."""
SUM_BLOCK = 1024


@triton.jit
def _load_tile(
    source, first, start, stride, num_rows, ROWS: tl.constexpr, SIZE: tl.constexpr,
    STEP: tl.constexpr, IS_DESCRIBED: tl.constexpr,
):  # fmt: skip
    """[ROWS, STEP] codes; beyond the last column zeros, beyond the last row anything."""
    if IS_DESCRIBED:
        return source.load([first, start])
    else:
        rows = tl.minimum(first + tl.arange(0, ROWS), num_rows - 1).to(tl.int64)
        columns = start + tl.arange(0, STEP)
        place = source + rows[:, None] * stride + columns[None, :]
        if SIZE % STEP == 0:
            return tl.load(place)
        else:
            return tl.load(place, mask=(columns < SIZE)[None, :], other=0.0)


@triton.jit
def _dot(q, w, SWAP: tl.constexpr, IS_INTEGER: tl.constexpr):
    TYPE: tl.constexpr = tl.int32 if IS_INTEGER else tl.float32
    if SWAP:
        return tl.dot(w, tl.trans(q), out_dtype=TYPE)
    else:
        return tl.dot(q, tl.trans(w), out_dtype=TYPE)


@triton.jit
def _store(
    total, y_ptr, bias_ptr, first_row, first_output, num_rows, num_outputs, y_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SWAP: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    outputs = first_output + tl.arange(0, OUTPUTS)
    rows = first_row + tl.arange(0, ROWS)
    if SWAP:
        total = tl.trans(total)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0)
        total += bias.to(tl.float32)[None, :]
    place = y_ptr + rows.to(tl.int64)[:, None] * y_stride + outputs[None, :]
    mask = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    tl.store(place, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def scaled_kernel(
    q,
    q_scales_ptr,
    w,
    w_scales_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    q_scales_stride,
    q_scales_group_stride,
    w_scales_stride,
    y_stride,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HALVES: tl.constexpr,
    SPLITS: tl.constexpr,
    SWAP: tl.constexpr,
    IS_DESCRIBED: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BAND: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """`q` and `w` are pointers, or descriptors of tiles; with two halves, of as many rows each.

    GROUP: numbers that share a scale; 0: a row has one. SPLITS: y is [SPLITS, T, N] float32.
    """
    row_tile, output_tile = tile_of(
        tl.program_id(0),
        tl.cdiv(num_rows, HALVES * ROWS),
        tl.cdiv(num_outputs, OUTPUTS),
        BAND,
    )
    first_row, first_output = row_tile * HALVES * ROWS, output_tile * OUTPUTS
    num_steps: tl.constexpr = (SIZE + STEP - 1) // STEP
    per_split: tl.constexpr = (num_steps + SPLITS - 1) // SPLITS
    first_step = tl.program_id(1) * per_split
    last_step = tl.minimum(first_step + per_split, num_steps)
    y_ptr += tl.program_id(1).to(tl.int64) * num_rows * y_stride
    rows = tl.minimum(first_row + tl.arange(0, ROWS), num_rows - 1)
    more_rows = tl.minimum(first_row + ROWS + tl.arange(0, ROWS), num_rows - 1)
    outputs = tl.minimum(first_output + tl.arange(0, OUTPUTS), num_outputs - 1)
    if SWAP:
        total = tl.zeros([OUTPUTS, ROWS], tl.int32 if IS_INTEGER else tl.float32)
    else:
        total = tl.zeros([ROWS, OUTPUTS], tl.int32 if IS_INTEGER else tl.float32)
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    if GROUP == 0:
        for step in tl.range(first_step, last_step):
            start = step * STEP
            x = _load_tile(q, first_row, start, SIZE, num_rows, ROWS, SIZE, STEP, IS_DESCRIBED)
            y = _load_tile(w, first_output, start, SIZE, num_outputs, OUTPUTS, SIZE, STEP, IS_DESCRIBED)  # fmt: skip  # noqa: E501
            if IS_INTEGER:
                total += _dot(x, y, SWAP, True)
            elif SWAP:
                total = tl.dot(y, tl.trans(x), total, max_num_imprecise_acc=STEP)
            else:
                total = tl.dot(x, tl.trans(y), total, max_num_imprecise_acc=STEP)
        row_scale = tl.load(q_scales_ptr + rows * q_scales_stride)
        output_scale = tl.load(w_scales_ptr + outputs * w_scales_stride)
        if SWAP:
            result = total.to(tl.float32) * row_scale[None, :] * output_scale[:, None]
        else:
            result = total.to(tl.float32) * row_scale[:, None] * output_scale[None, :]
        _store(result, y_ptr, bias_ptr, first_row, first_output, num_rows, num_outputs, y_stride,
               ROWS, OUTPUTS, SWAP, HAS_BIAS)  # fmt: skip
    else:
        more = tl.zeros_like(total)
        row_place = q_scales_ptr + rows * q_scales_stride
        more_place = q_scales_ptr + more_rows * q_scales_stride
        if OUTPUTS <= GROUP:  # and divides it
            output_place = w_scales_ptr + first_output // GROUP * w_scales_stride
        else:
            output_place = w_scales_ptr + outputs // GROUP * w_scales_stride
        row_scale = tl.load(row_place + first_step * q_scales_group_stride)
        more_scale = tl.load(more_place + first_step * q_scales_group_stride)
        output_scale = tl.load(output_place + first_step)
        for step in tl.range(first_step, last_step):
            start = step * STEP
            # A step ahead of what needs them.
            following = tl.minimum(step + 1, num_steps - 1)
            next_row_scale = tl.load(row_place + following * q_scales_group_stride)
            next_output_scale = tl.load(output_place + following)
            x = _load_tile(q, first_row, start, SIZE, num_rows, ROWS, SIZE, STEP, IS_DESCRIBED)
            y = _load_tile(w, first_output, start, SIZE, num_outputs, OUTPUTS, SIZE, STEP, IS_DESCRIBED)  # fmt: skip  # noqa: E501
            if OUTPUTS <= GROUP:
                factor = row_scale * output_scale
                factor = factor[None, :] if SWAP else factor[:, None]
            elif SWAP:
                factor = row_scale[None, :] * output_scale[:, None]
            else:
                factor = row_scale[:, None] * output_scale[None, :]
            total += _dot(x, y, SWAP, IS_INTEGER) * factor
            if HALVES == 2:
                next_more_scale = tl.load(more_place + following * q_scales_group_stride)
                z = _load_tile(q, first_row + ROWS, start, SIZE, num_rows, ROWS, SIZE, STEP, IS_DESCRIBED)  # fmt: skip  # noqa: E501
                more += _dot(z, y, SWAP, IS_INTEGER) * (more_scale * output_scale)[:, None]
                more_scale = next_more_scale
            row_scale = next_row_scale
            output_scale = next_output_scale
        _store(total, y_ptr, bias_ptr, first_row, first_output, num_rows, num_outputs, y_stride,
               ROWS, OUTPUTS, SWAP, HAS_BIAS)  # fmt: skip
        if HALVES == 2:
            _store(more, y_ptr, bias_ptr, first_row + ROWS, first_output, num_rows, num_outputs,
                   y_stride, ROWS, OUTPUTS, SWAP, HAS_BIAS)  # fmt: skip


@triton.jit
def sum_kernel(
    partial_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = outputs < num_outputs
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        place = partial_ptr + (split * num_rows + row) * num_outputs + outputs
        total += tl.load(place, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * num_outputs + outputs, total.to(y_ptr.dtype.element_ty), mask=mask)


@cache
def has_descriptors(device: torch.device) -> bool:
    if device.type == "cpu":  # Triton's interpreter
        return True
    return torch.cuda.get_device_capability(device) >= OLDEST_DESCRIPTORS


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`."""
    if scheme not in SCHEMES:
        raise ValueError(f"no quantisation scheme {scheme!r}; known: {', '.join(SCHEMES)}")
    y = torch.empty((q.shape[0], weight.shape[0]), dtype=out_dtype, device=q.device)
    multiply(q, scales, weight, weight_scales, None, y, SCHEMES[scheme].group)
    return y


def multiply(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None,
    y: Tensor,
    group: int | None,
    launch: ScaledLaunch | None = None,
) -> None:
    """Fill y [T, N], contiguous, with the product of what the codes mean, plus bias.

    Args:
        q, weight: contiguous.
        scales: [T] or [T, groups], any strides.
        group: numbers that share a scale; None: the row.
    """
    (num_rows, size), num_outputs = q.shape, weight.shape[0]
    if not y.numel():
        return
    launch = launch or scaled_launch(num_rows, num_outputs, size, group, shared_bytes(q.device))
    parts = y
    if launch.splits > 1:
        shape = (launch.splits, num_rows, num_outputs)
        parts = torch.empty(shape, dtype=torch.float32, device=y.device)
    step = group or TOKEN_STEP
    is_described = launch.is_described and size % 16 == 0 and has_descriptors(q.device)
    tiles: tuple[Any, Any] = (q, weight)
    if is_described:
        tiles = (
            TensorDescriptor.from_tensor(q, [launch.rows, step]),
            TensorDescriptor.from_tensor(weight, [launch.outputs, step]),
        )
    num_tiles = triton.cdiv(num_rows, launch.halves * launch.rows) * triton.cdiv(
        num_outputs, launch.outputs
    )
    has_sum = launch.splits > 1
    scaled_kernel[(num_tiles, launch.splits)](
        tiles[0],
        scales,
        tiles[1],
        weight_scales,
        parts if bias is None else bias,
        parts,
        num_rows,
        num_outputs,
        scales.stride(0),
        scales.stride(-1),
        weight_scales.stride(0),
        num_outputs,
        SIZE=size,
        GROUP=group or 0,
        STEP=step,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        HALVES=launch.halves,
        SPLITS=launch.splits,
        SWAP=launch.swap,
        IS_DESCRIBED=is_described,
        IS_INTEGER=q.dtype == torch.int8,
        HAS_BIAS=bias is not None and not has_sum,
        BAND=BAND,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **overlap(q.device),
    )
    if has_sum:
        sum_kernel[(num_rows, triton.cdiv(num_outputs, SUM_BLOCK))](
            parts,
            parts if bias is None else bias,
            y,
            num_rows,
            num_outputs,
            SPLITS=launch.splits,
            HAS_BIAS=bias is not None,
            BLOCK=SUM_BLOCK,
            **overlap(q.device),
        )
