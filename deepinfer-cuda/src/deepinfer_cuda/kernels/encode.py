"""Rows rounded to records of the cache, bit by bit as the reference rounds. A program has a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from deepinfer_core.ops.records import Record
from torch import Tensor

from deepinfer_cuda.kernels.records import layout_of

E4M3_MAX, E2M1_MAX = tl.constexpr(448.0), tl.constexpr(6.0)
MIN_AMAX = tl.constexpr(1e-4)
MIN_E4M3_SCALE, MIN_UE8M0_SCALE = tl.constexpr(2.0**-9), tl.constexpr(2.0**-126)


@triton.jit
def _pow2_ceil(x):
    """The smallest power of two that is no smaller, and its exponent plus 127."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return (exponent << 23).to(tl.float32, bitcast=True), exponent


@triton.jit
def _scale_of(amax, CODES: tl.constexpr, SCALES: tl.constexpr):
    """The scale of a group, and the bits that are written of it."""
    if CODES == "e4m3":
        scale = tl.div_rn(tl.maximum(amax, MIN_AMAX), E4M3_MAX)
        bits = scale.to(tl.int32, bitcast=True)
        if SCALES == "ue8m0":
            scale, bits = _pow2_ceil(scale)
    else:
        if SCALES == "ue8m0":
            least = tl.maximum(amax, E2M1_MAX * MIN_UE8M0_SCALE)
            scale, bits = _pow2_ceil(tl.div_rn(least, E2M1_MAX))
        else:
            scale = tl.div_rn(tl.maximum(amax, E2M1_MAX * MIN_E4M3_SCALE), E2M1_MAX)
            small = tl.minimum(scale, E4M3_MAX).to(tl.float8e4nv)
            scale = small.to(tl.float32)
            bits = small.to(tl.uint8, bitcast=True).to(tl.int32)
    return scale, bits


@triton.jit
def _e2m1_code(x):
    """The nearest code of four bits; halfway, the even one."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75) + (size > 1.25) + (size >= 1.75)
    code += (size > 2.5).to(tl.int32) + (size >= 3.5) + (size > 5.0)
    return code | ((x.to(tl.int32, bitcast=True) >> 31) & 1) << 3


@triton.jit
def _turn(x, dims, TURNED: tl.constexpr):
    """Times a Hadamard matrix of this size, stretch by stretch; steps in the reference's order."""
    for level in tl.static_range(16):
        if 2**level < TURNED:
            other = tl.gather(x, dims ^ (2**level), 0)
            x = tl.where((dims & (2**level)) == 0, x + other, other - x)
    return x


@triton.jit
def _encode_kernel(
    x_ptr,
    out_ptr,
    x_stride,
    turn_factor,
    WIDTH: tl.constexpr,
    DIMS: tl.constexpr,
    TAIL: tl.constexpr,
    NUM_BYTES: tl.constexpr,
    TURNED: tl.constexpr,
    RECORD: tl.constexpr,
):
    CODES: tl.constexpr = RECORD[0]
    SCALES: tl.constexpr = RECORD[1]
    GROUP: tl.constexpr = RECORD[2]
    CODED: tl.constexpr = RECORD[3]
    SCALES_AT: tl.constexpr = RECORD[4]
    TAIL_AT: tl.constexpr = RECORD[5]
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIMS)
    x = tl.load(x_ptr + row * x_stride + dims, mask=dims < WIDTH, other=0.0).to(tl.float32)
    if TURNED > 0:
        x = _turn(x, dims, TURNED) * turn_factor
    out = out_ptr + row * NUM_BYTES
    is_coded = dims < CODED
    scales = tl.full([DIMS], 1.0, tl.float32)
    for group in range((CODED + GROUP - 1) // GROUP):
        is_own = is_coded & (dims // GROUP == group)
        scale, bits = _scale_of(tl.max(tl.where(is_own, tl.abs(x), 0.0), 0), CODES, SCALES)
        scales = tl.where(is_own, scale, scales)
        if SCALES == "float32":
            at = tl.arange(0, 4)
            tl.store(out + SCALES_AT + 4 * group + at, ((bits >> (8 * at)) & 255).to(tl.uint8))
        else:
            tl.store(out + SCALES_AT + group, bits.to(tl.uint8))
    scaled = tl.div_rn(x, scales)
    if CODES == "e4m3":
        near = tl.minimum(tl.maximum(scaled, -E4M3_MAX), E4M3_MAX).to(tl.float8e4nv)
        tl.store(out + dims, near.to(tl.uint8, bitcast=True), mask=is_coded)
    else:
        code = tl.where(is_coded, _e2m1_code(scaled), 0)
        low, high = tl.split(tl.reshape(code, [DIMS // 2, 2]))
        pairs = tl.arange(0, DIMS // 2)
        tl.store(out + pairs, (low | high << 4).to(tl.uint8), mask=2 * pairs < CODED)
    if TAIL > 0:
        # Upper halves of float32, rounded to even.
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        place = out + TAIL_AT + 2 * (dims - CODED)
        is_tail = (dims >= CODED) & (dims < WIDTH)
        tl.store(place, ((bits >> 16) & 255).to(tl.uint8), mask=is_tail)
        tl.store(place + 1, ((bits >> 24) & 255).to(tl.uint8), mask=is_tail)


def encode(x: Tensor, record: Record) -> Tensor:
    """See `deepinfer_core.ops.specs.quant.encode`."""
    num_rows, width = x.shape
    used = record.code_bytes + record.scale_bytes + 2 * record.tail
    make = torch.empty if used == record.num_bytes else torch.zeros
    out = make((num_rows, record.num_bytes), dtype=torch.uint8, device=x.device)
    if not num_rows:
        return out
    x = x if x.stride(1) == 1 else x.contiguous()
    size = width & -width if record.is_turned else 0
    _encode_kernel[(num_rows,)](
        x,
        out,
        x.stride(0),
        float(size**-0.5) if size else 1.0,
        WIDTH=width,
        DIMS=triton.next_power_of_2(width),
        TAIL=record.tail,
        NUM_BYTES=record.num_bytes,
        TURNED=size,
        RECORD=layout_of(record),
        num_warps=1,
    )
    return out
