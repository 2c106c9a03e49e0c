"""One product of tiles of tokens with their experts' matrices.

With a gate, a tile of weights has rows of the gate above as many of the other half. In
`fp8_block128` a scale is applied to the products that share it, in float32; the other schemes
scale numbers before they multiply, as their groups are shorter than a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer_cuda.heuristics_moe import PLAIN, ProductLaunch
from deepinfer_cuda.kernels.codes import e2m1_pairs, e4m3_numbers, e8m0_numbers, scale_groups
from deepinfer_cuda.kernels.expert_tiles import Tiles
from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

OLDEST_DESCRIPTORS = (9, 0)
"""Compute capability from which an engine of its own copies tiles."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Those of all experts; of scheme `plain`, numbers without scales."""

    codes: Tensor
    scales: Tensor | None = None
    scheme: str = PLAIN


@triton.jit
def _dot(x, w, total, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    if SWAP:
        return tl.dot(w, tl.trans(x), total, input_precision=PRECISION)
    else:
        return tl.dot(x, tl.trans(w), total, input_precision=PRECISION)


@triton.jit
def _load_short_groups(
    w_place, scale_place, start, DEPTH: tl.constexpr, SCHEME: tl.constexpr, BLOCK: tl.constexpr
):
    """[rows, BLOCK] float32 from pointers to the first codes and scales of rows."""
    groups = start // 32 + tl.arange(0, BLOCK // 32)
    mask = (groups * 32 < DEPTH)[None, :]
    scales = tl.load(scale_place + groups[None, :], mask=mask, other=0)
    if SCHEME == "mxfp4":
        pairs = start // 2 + tl.arange(0, BLOCK // 2)
        codes = tl.load(w_place + pairs[None, :], mask=(pairs < DEPTH // 2)[None, :], other=0)
        return scale_groups(e2m1_pairs(codes), e8m0_numbers(scales), 32)
    else:
        columns = start + tl.arange(0, BLOCK)
        codes = tl.load(w_place + columns[None, :], mask=(columns < DEPTH)[None, :], other=0.0)
        return scale_groups(codes.to(tl.float32), scales, 32)


@triton.jit(do_not_specialize=["num_slots"])
def product_kernel(
    x_ptr,
    x_scales_ptr,
    w,
    w_scales_ptr,
    y_ptr,
    count_ptr,
    experts_ptr,
    slots_ptr,
    x_stride,
    num_slots,
    size,
    scales_stride,
    scales_row_stride,
    limit,
    DEPTH: tl.constexpr,
    TOP_K: tl.constexpr,
    SCHEME: tl.constexpr,
    IS_DESCRIBED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    SWAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_PACKED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program has `COLUMNS` outputs of a tile; those of one tile follow each other.

    `w` is a pointer, or a descriptor of [experts, halves, size, DEPTH].
    """
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    num_parts = tl.cdiv(size, COLUMNS)
    tile = tl.program_id(0) // num_parts
    if tile >= tl.load(count_ptr):
        return
    first = (tl.program_id(0) % num_parts) * COLUMNS
    expert = tl.load(experts_ptr + tile)
    slots = tl.load(slots_ptr + tile * ROWS + tl.arange(0, ROWS))
    is_row = slots < num_slots
    source = tl.where(is_row, slots // TOP_K, 0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    is_gate = lanes < COLUMNS
    block = tl.arange(0, BLOCK)
    x_place = x_ptr + source[:, None] * x_stride + block[None, :]
    scale_place = w_scales_ptr + expert.to(tl.int64) * scales_stride
    if not IS_DESCRIBED:
        own_rows = tl.minimum(first + lanes % COLUMNS, size - 1) + lanes // COLUMNS * size
        row_width: tl.constexpr = DEPTH // 2 if SCHEME == "mxfp4" else DEPTH
        matrix = expert.to(tl.int64) * (WIDTH // COLUMNS * row_width) * size
        w_place = w + matrix + own_rows[:, None] * row_width
    total = tl.zeros([WIDTH, ROWS] if SWAP else [ROWS, WIDTH], tl.float32)
    if SCHEME == "fp8_block128":
        # Columns of a program share their scales: COLUMNS divides 128 and, with a gate, size.
        gate_place = scale_place + first // 128 * scales_row_stride
        up_place = scale_place + (size + first) // 128 * scales_row_stride
        x_scale_place = x_scales_ptr + source * tl.cdiv(DEPTH, 128)
        gate_scale = tl.load(gate_place)
        if IS_GATED:
            up_scale = tl.load(up_place)
        if IS_ROUNDED:
            x_scale = tl.load(x_scale_place, mask=is_row, other=0.0)
    if SCHEME == "mxfp4":
        scale_place = scale_place + own_rows[:, None] * scales_row_stride
    if SCHEME == "fp8_block32":
        scale_place = scale_place + (own_rows // 32)[:, None] * scales_row_stride
    for start in tl.range(0, DEPTH, BLOCK):
        if DEPTH % BLOCK == 0:
            x = tl.load(x_place + start, mask=is_row[:, None], other=0.0)
        else:
            is_column = (start + block < DEPTH)[None, :]
            x = tl.load(x_place + start, mask=is_row[:, None] & is_column, other=0.0)
        if SCHEME == "mxfp4" or SCHEME == "fp8_block32":
            weights = _load_short_groups(w_place, scale_place, start, DEPTH, SCHEME, BLOCK)
        elif IS_DESCRIBED:
            weights = tl.reshape(w.load([expert, 0, first, start]), (WIDTH, BLOCK))
        elif DEPTH % BLOCK == 0:
            weights = tl.load(w_place + start + block[None, :])
        else:
            weights = tl.load(w_place + start + block[None, :], mask=is_column, other=0.0)
        if SCHEME == "fp8_block128" and not IS_ROUNDED:
            weights = e4m3_numbers(weights, x.dtype, IS_PACKED)
        elif not IS_ROUNDED:
            weights = weights.to(x.dtype)
        if SCHEME == "fp8_block128":
            factors = gate_scale
            if IS_GATED:
                factors = tl.where(is_gate, gate_scale, up_scale)
                factors = factors[:, None] if SWAP else factors[None, :]
            if IS_ROUNDED:
                factors = factors * (x_scale[None, :] if SWAP else x_scale[:, None])
            # Read a step before they are needed.
            group = tl.minimum(start + BLOCK, DEPTH - 1) // 128
            gate_scale = tl.load(gate_place + group)
            if IS_GATED:
                up_scale = tl.load(up_place + group)
            if IS_ROUNDED:
                x_scale = tl.load(x_scale_place + group, mask=is_row, other=0.0)
            total += _dot(x, weights, tl.zeros_like(total), SWAP, PRECISION) * factors
        else:
            total = _dot(x, weights, total, SWAP, PRECISION)
    if SWAP:
        total = tl.trans(total)
    if IS_GATED:
        halves = tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS)), (0, 2, 1))
        gate, up = tl.split(halves)
        if HAS_LIMIT:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
        total = gate / (1.0 + tl.exp(-gate)) * up
    columns = first + tl.arange(0, COLUMNS)
    y_place = y_ptr + slots.to(tl.int64)[:, None] * size + columns[None, :]
    mask = is_row[:, None] & (columns < size)[None, :]
    tl.store(y_place, total.to(y_ptr.dtype.element_ty), mask=mask)


def multiply(
    x: Tensor,
    matrices: Matrices,
    tiles: Tiles,
    y: Tensor,
    launch: ProductLaunch,
    x_scales: Tensor | None = None,
    *,
    top_k: int = 1,
    is_gated: bool = False,
    limit: float | None = None,
) -> None:
    """One product of every slot with its expert's matrix.

    Args:
        x: [number of slots / top_k, K]; with x_scales, codes of which 128 share a scale.
        y: [number of slots, N], where it goes; rows of experts that are not here stay as they are.
        is_gated: the matrices are [2N, K] and y is silu(gate) * up.
    """
    num_slots, size = y.shape
    w, scales = matrices.codes, matrices.scales
    scales = w if scales is None else scales
    halves = 2 if is_gated else 1
    is_described = launch.is_described and _has_descriptors(x.device) and _is_aligned(w)
    product_kernel[(tiles.bound * triton.cdiv(size, launch.columns),)](
        x,
        x if x_scales is None else x_scales,
        _describe(w, halves, launch) if is_described else w,
        scales,
        y,
        tiles.count,
        tiles.experts,
        tiles.slots,
        x.stride(0),
        num_slots,
        size,
        scales.stride(0),
        scales.stride(1),
        limit or 0.0,
        DEPTH=x.shape[1],
        TOP_K=top_k,
        SCHEME=matrices.scheme,
        IS_DESCRIBED=is_described,
        IS_ROUNDED=x_scales is not None,
        IS_GATED=is_gated,
        HAS_LIMIT=limit is not None,
        SWAP=launch.swap,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        WIDTH=halves * launch.columns,
        BLOCK=launch.depth,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        IS_PACKED=packs(x.device),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **overlap(x.device),
    )


def _describe(w: Tensor, halves: int, launch: ProductLaunch) -> TensorDescriptor:
    """[E, halves * N, K] for the copy engine, a tile of both halves at a time."""
    parts = w.view(w.shape[0], halves, w.shape[1] // halves, w.shape[2])
    block = [1, halves, launch.columns, launch.depth]
    return TensorDescriptor(parts, list(parts.shape), list(parts.stride()), block)


def _is_aligned(w: Tensor) -> bool:
    """Rows, and with them the matrix, lie as the copy engine wants them."""
    return w.data_ptr() % 16 == 0 and w.shape[2] * w.element_size() % 16 == 0


@cache
def _has_descriptors(device: torch.device) -> bool:
    """On the CPU, Triton's interpreter has them."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= OLDEST_DESCRIPTORS


def packs(device: torch.device) -> bool:
    """Whether codes are decoded by instructions of the GPU, which the interpreter has not."""
    return device.type != "cpu"
