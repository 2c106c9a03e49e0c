"""Products with weights that stay codes: decoded in registers, beside rows as they are.

The weight is the left operand, whose rows a matrix unit wants many of. Where outputs are too few to
occupy the device, a program multiplies several groups of columns at once: each is some rows of the
left operand, and of all pairs with the same groups of x only those on the diagonal count. In
`fp8_block128` a scale is applied to the products that share it, in float32; the other schemes scale
numbers before they multiply, as their groups are shorter than a step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.heuristics_coded import CodedLaunch, coded_launch, invariant_launch
from deepinfer_cuda.kernels import skinny
from deepinfer_cuda.kernels.codes import e2m1_pairs, e4m3_numbers, e8m0_numbers, scale_groups
from deepinfer_cuda.kernels.limits import dtype_name
from deepinfer_cuda.kernels.overlap import let_next_start, overlap, prefetch, wait_for_inputs

SCHEMES = ("fp8_block128", "fp8_block32", "mxfp4")
BAND = 8
"""Tiles of rows that share a tile of outputs before the next one, so that caches hold both."""


@triton.jit
def tile_of(program, num_row_tiles, num_output_tiles, BAND: tl.constexpr):
    """(tile of rows, tile of outputs) of a program, going through bands of row tiles."""
    per_band = BAND * num_output_tiles
    first = program // per_band * BAND
    height = tl.minimum(num_row_tiles - first, BAND)
    place = program % per_band
    return first + place % height, place // height


@triton.jit
def _prefetch_weight(
    w_ptr, first, num_outputs, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, NUM_PIECES: tl.constexpr
):
    # LAYOUT: a tile of the weight, whose rows are cut into pieces of 1,024 bytes.
    pieces = tl.arange(0, NUM_PIECES)
    row = tl.minimum(first + pieces % OUTPUTS, num_outputs - 1).to(tl.int64)
    byte = tl.minimum(pieces // OUTPUTS * 1024, WIDTH - 1024)
    prefetch(w_ptr + row * WIDTH + byte)


@triton.jit
def _load_numbers(
    w_place, scale_place, columns, SIZE: tl.constexpr, SCHEME: tl.constexpr, BLOCK: tl.constexpr
):
    """[rows, BLOCK] float32 of schemes with short groups; `columns` [rows] are each row's first."""
    groups = columns[:, None] // 32 + tl.arange(0, BLOCK // 32)[None, :]
    is_group = groups * 32 < SIZE
    scales = tl.load(scale_place[:, None] + groups, mask=is_group, other=0)
    if SCHEME == "mxfp4":
        pairs = columns[:, None] // 2 + tl.arange(0, BLOCK // 2)[None, :]
        codes = tl.load(w_place[:, None] + pairs, mask=pairs < SIZE // 2, other=0)
        return scale_groups(e2m1_pairs(codes), e8m0_numbers(scales), 32)
    else:
        place = columns[:, None] + tl.arange(0, BLOCK)[None, :]
        codes = tl.load(w_place[:, None] + place, mask=place < SIZE, other=0.0)
        return scale_groups(codes.to(tl.float32), scales, 32)


@triton.jit(do_not_specialize=["num_rows"])
def coded_kernel(
    x_ptr,
    w_ptr,
    scales_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    x_stride,
    scales_stride,
    y_stride,
    SIZE: tl.constexpr,
    SCHEME: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BAND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_PACKED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row_tile, output_tile = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.cdiv(num_outputs, OUTPUTS), BAND
    )
    width: tl.constexpr = SIZE // 2 if SCHEME == "mxfp4" else SIZE
    if OVERLAP and PREFETCHED > 0 and width >= 1024 and width % 16 == 0:
        _prefetch_weight(w_ptr, output_tile * OUTPUTS, num_outputs, OUTPUTS, width, PREFETCHED)
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    block = tl.arange(0, BLOCK)
    left = tl.arange(0, OUTPUTS * GROUPS)
    own = tl.minimum(output_tile * OUTPUTS + left % OUTPUTS, num_outputs - 1)
    left_start = left // OUTPUTS * BLOCK
    w_place = w_ptr + own.to(tl.int64) * width
    right = tl.arange(0, ROWS * GROUPS)
    own_rows = row_tile * ROWS + right % ROWS
    right_start = right // ROWS * BLOCK
    x_columns = right_start[:, None] + block[None, :]
    x_place = x_ptr + own_rows.to(tl.int64)[:, None] * x_stride + x_columns
    is_row = (own_rows < num_rows)[:, None]
    step: tl.constexpr = BLOCK * GROUPS
    total = tl.zeros([OUTPUTS * GROUPS, ROWS * GROUPS], tl.float32)
    if SCHEME == "fp8_block128":
        w_columns = left_start[:, None] + block[None, :]
        w_places = w_place[:, None] + w_columns
        scale_place = scales_ptr + own // 128 * scales_stride
        scale = tl.load(scale_place + tl.minimum(left_start, SIZE - 1) // 128)
        for start in tl.range(0, SIZE, step):
            # A step ahead of what needs them.
            next_start = tl.minimum(start + step + left_start, SIZE - 1)
            next_scale = tl.load(scale_place + next_start // 128)
            if SIZE % step == 0:
                x = tl.load(x_place + start, mask=is_row, other=0.0)
                w = tl.load(w_places + start)
            else:
                x = tl.load(x_place + start, mask=is_row & (start + x_columns < SIZE), other=0.0)
                w = tl.load(w_places + start, mask=start + w_columns < SIZE, other=0.0)
            w = e4m3_numbers(w, x.dtype, IS_PACKED)
            products = tl.dot(w, tl.trans(x), input_precision=PRECISION)
            total += products * scale[:, None]
            scale = next_scale
    else:
        if SCHEME == "mxfp4":
            scale_place = scales_ptr + own.to(tl.int64) * scales_stride
        else:
            scale_place = scales_ptr + own // 32 * scales_stride
        for start in tl.range(0, SIZE, step):
            if SIZE % step == 0:
                x = tl.load(x_place + start, mask=is_row, other=0.0)
            else:
                x = tl.load(x_place + start, mask=is_row & (start + x_columns < SIZE), other=0.0)
            w = _load_numbers(w_place, scale_place, start + left_start, SIZE, SCHEME, BLOCK)
            total = tl.dot(w.to(x.dtype), tl.trans(x), total, input_precision=PRECISION)
    if GROUPS > 1:
        pairs = tl.reshape(total, (GROUPS, OUTPUTS, GROUPS, ROWS))
        group = tl.arange(0, GROUPS)
        is_same = group[:, None, None, None] == group[None, None, :, None]
        total = tl.sum(tl.sum(tl.where(is_same, pairs, 0.0), axis=2), axis=0)
    outputs = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    is_output = outputs < num_outputs
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    y = tl.trans(total.to(y_ptr.dtype.element_ty))
    y_place = y_ptr + rows.to(tl.int64)[:, None] * y_stride + outputs[None, :]
    tl.store(y_place, y, mask=(rows < num_rows)[:, None] & is_output[None, :])


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`."""
    if scheme == skinny.SCHEME:
        weights = skinny.Weights(codes, scales, bias)
        few = skinny.launch_for(x, weights, len(x))
        if few is not None:
            return skinny.multiply(x, weights, few)
    launch = coded_launch(x.shape[0], codes.shape[0], x.shape[1], dtype_name(x.dtype), scheme)
    return multiply(x, codes, scales, scheme, bias, launch)


def coded_invariant(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`: each output is summed up in one order."""
    launch = invariant_launch(x.shape[0], dtype_name(x.dtype), scheme)
    return multiply(x, codes, scales, scheme, bias, launch)


def multiply(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    scheme: str,
    bias: Tensor | None,
    launch: CodedLaunch,
) -> Tensor:
    """`gemm.coded` with a launch.

    Raises:
        ValueError: the scheme is unknown.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme {scheme!r} of weights; known: {', '.join(SCHEMES)}")
    x = x if x.stride(1) == 1 else x.contiguous()
    (num_rows, size), num_outputs = x.shape, codes.shape[0]
    y = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    num_tiles = triton.cdiv(num_outputs, launch.outputs) * triton.cdiv(num_rows, launch.rows)
    if not num_tiles:
        return y
    coded_kernel[(num_tiles,)](
        x,
        codes,
        scales,
        x if bias is None else bias,
        y,
        num_rows,
        num_outputs,
        x.stride(0),
        scales.stride(0),
        y.stride(0),
        SIZE=size,
        SCHEME=scheme,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        GROUPS=launch.groups,
        BLOCK=launch.block,
        BAND=BAND,
        HAS_BIAS=bias is not None,
        PREFETCHED=launch.prefetched,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        IS_PACKED=launch.is_packed and x.device.type != "cpu",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **overlap(x.device),
    )
    return y
