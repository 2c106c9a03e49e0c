"""Rows of a cache that are records: codes with scales, decoded where they are read.

Every byte is loaded by itself, as a record may lie at any address.
"""

from __future__ import annotations

import triton
import triton.language as tl
from deepinfer_core.ops.records import Record

Layout = tuple[str, str, int, int, int, int]
"""What of a record a kernel is compiled for: codes, scales, dims that share one, dims that are
codes, and the bytes where scales and the tail begin."""


def layout_of(record: Record | None) -> Layout | None:
    """None: rows are plain."""
    if record is None:
        return None
    how = record.format
    places = (record.num_coded, record.scale_offset, record.tail_offset)
    return (how.codes, how.scales, record.group, *places)


@triton.jit
def _e4m3(code):
    return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def _e2m1(code):
    magnitude = code & 7
    exponent, half = magnitude >> 1, (magnitude & 1).to(tl.float32) * 0.5
    power = ((exponent + 126) << 23).to(tl.float32, bitcast=True)
    value = tl.where(exponent == 0, half, (1.0 + half) * power)
    return tl.where(code >= 8, -value, value)


@triton.jit
def _scales(first, group, mask, SCALES: tl.constexpr):
    """float32 scales of these groups, of records whose scales begin at `first`."""
    if SCALES == "float32":
        byte = first + 4 * group
        bits = tl.load(byte, mask=mask, other=0).to(tl.int32)
        bits |= tl.load(byte + 1, mask=mask, other=0).to(tl.int32) << 8
        bits |= tl.load(byte + 2, mask=mask, other=0).to(tl.int32) << 16
        bits |= tl.load(byte + 3, mask=mask, other=0).to(tl.int32) << 24
        scales = bits.to(tl.float32, bitcast=True)
    else:
        byte = tl.load(first + group, mask=mask, other=0).to(tl.int32)
        scales = (byte << 23).to(tl.float32, bitcast=True) if SCALES == "ue8m0" else _e4m3(byte)
    return scales


@triton.jit
def load_codes(base, places, dims, mask, RECORD: tl.constexpr):
    """What the codes of these dims stand for without their scales, of records without a tail."""
    CODES: tl.constexpr = RECORD[0]
    record = base + places[:, None]
    dims = dims[None, :]
    if CODES == "e4m3":
        x = _e4m3(tl.load(record + dims, mask=mask, other=0))
    else:
        byte = tl.load(record + dims // 2, mask=mask, other=0).to(tl.int32)
        x = _e2m1((byte >> (dims % 2 * 4)) & 15)
    return x


@triton.jit
def load_scale(base, places, mask, RECORD: tl.constexpr):
    """The first scale of the records in these places, [places] float32."""
    SCALES: tl.constexpr = RECORD[1]
    SCALES_AT: tl.constexpr = RECORD[4]
    return _scales(base + places + SCALES_AT, tl.zeros_like(places), mask, SCALES)


@triton.jit
def load_coded(base, places, dims, mask, RECORD: tl.constexpr):
    """These dims of the records in these places, [places, dims] float32; zeros where masked."""
    CODES: tl.constexpr = RECORD[0]
    SCALES: tl.constexpr = RECORD[1]
    GROUP: tl.constexpr = RECORD[2]
    CODED: tl.constexpr = RECORD[3]
    SCALES_AT: tl.constexpr = RECORD[4]
    TAIL_AT: tl.constexpr = RECORD[5]
    record = base + places[:, None]
    dims = dims[None, :]
    is_coded = mask & (dims < CODED)
    if CODES == "e4m3":
        x = _e4m3(tl.load(record + dims, mask=is_coded, other=0))
    else:
        byte = tl.load(record + dims // 2, mask=is_coded, other=0).to(tl.int32)
        x = _e2m1((byte >> (dims % 2 * 4)) & 15)
    x *= _scales(record + SCALES_AT, dims // GROUP, is_coded, SCALES)
    # A tail of bfloat16, the upper halves of float32.
    is_tail = mask & (dims >= CODED)
    byte = record + TAIL_AT + 2 * (dims - CODED)
    bits = tl.load(byte, mask=is_tail, other=0).to(tl.int32) << 16
    bits |= tl.load(byte + 1, mask=is_tail, other=0).to(tl.int32) << 24
    return tl.where(is_coded, x, bits.to(tl.float32, bitcast=True))
