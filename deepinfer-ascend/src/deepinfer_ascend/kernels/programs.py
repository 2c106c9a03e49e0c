"""Programs in Triton for what has no fused operator. No torch here, so that a compiler alone reads
them: they are lowered in CI where there is one, and interpreted on a CPU.

HW(910B): an NPU starts few programs, each on a vector core, so every program goes through many
rows; a row of up to 8,192 numbers fits its memory whole.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.0e30)
"""Below every gate, and finite: differences of it stay numbers."""


@triton.jit
def layer_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    sum_ptr,
    num_rows,
    size,
    x_stride,
    residual_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
        if HAS_RESIDUAL:
            more = tl.load(residual_ptr + row * residual_stride + columns, mask=mask, other=0.0)
            x = (x.to(tl.float32) + more.to(tl.float32)).to(y_ptr.dtype.element_ty)
            tl.store(sum_ptr + row * size + columns, x, mask=mask)
        wide = x.to(tl.float32)
        mean = tl.sum(wide, axis=0) / size
        centred = tl.where(mask, wide - mean, 0.0)
        variance = tl.sum(centred * centred, axis=0) / size
        y = centred / tl.sqrt(variance + eps)
        if HAS_WEIGHT:
            y = y * tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        if HAS_BIAS:
            y = y + tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * size + columns, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def collapse(
    streams_ptr, weights_ptr, y_ptr, num_rows, size, NUM_STREAMS: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for stream in range(NUM_STREAMS):
            place = row * NUM_STREAMS + stream
            numbers = tl.load(streams_ptr + place * size + columns, mask=mask, other=0.0)
            total += tl.load(weights_ptr + place) * numbers.to(tl.float32)
        tl.store(y_ptr + row * size + columns, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gate(
    streams_ptr,
    keys_ptr,
    values_ptr,
    q_weight_ptr,
    k_weight_ptr,
    skip_ptr,
    y_ptr,
    num_rows,
    size,
    eps,
    factor,
    smallest,
    NUM_STREAMS: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        values = tl.load(values_ptr + row * size + columns, mask=mask, other=0.0).to(tl.float32)
        for stream in range(NUM_STREAMS):
            place = (row * NUM_STREAMS + stream) * size + columns
            x = tl.load(streams_ptr + place, mask=mask, other=0.0).to(tl.float32)
            key = tl.load(keys_ptr + place, mask=mask, other=0.0).to(tl.float32)
            own = stream * size + columns
            q_weight = tl.load(q_weight_ptr + own, mask=mask, other=0.0).to(tl.float32)
            k_weight = tl.load(k_weight_ptr + own, mask=mask, other=0.0).to(tl.float32)
            dot = tl.sum(x * (q_weight * k_weight) * key, axis=0)
            dot = dot / tl.sqrt(tl.sum(x * x, axis=0) / size + eps)
            dot = dot / tl.sqrt(tl.sum(key * key, axis=0) / size + eps) * factor
            root = tl.sqrt(tl.maximum(tl.abs(dot), smallest))
            root = tl.where(dot < 0, -root, root)
            opened = 1.0 / (1.0 + tl.exp(-root))
            if HAS_SKIP:
                opened = tl.where(tl.load(skip_ptr + row) != 0, 0.0, opened)
            y = x + opened * values
            tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def compress(
    cache_ptr,
    rows_ptr,
    bias_ptr,
    y_ptr,
    num_groups,
    width,
    block_stride,
    block_size,
    NUM_ROWS: tl.constexpr,
    NUM_PLACES: tl.constexpr,
    OVERLAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Width is that of a pooled row; a raw row has as many values and gates, or twice as many."""
    channels = width * 2 if OVERLAPS else width
    for group in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        for first in range(0, width, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            mask = columns < width
            peak = tl.full([BLOCK], LOWEST, dtype=tl.float32)
            total = tl.zeros([BLOCK], dtype=tl.float32)
            pooled = tl.zeros([BLOCK], dtype=tl.float32)
            for number in range(NUM_ROWS):
                slot = tl.load(rows_ptr + group * NUM_ROWS + number).to(tl.int64)
                is_row = slot >= 0
                slot = tl.where(is_row, slot, 0)
                # LAYOUT: the group before pools first halves, a group itself second ones.
                half = width * (number // NUM_PLACES) if OVERLAPS else 0
                raw = cache_ptr + slot // block_size * block_stride
                raw += slot % block_size * (2 * channels) + half + columns
                # Slot 0 is of nobody and may hold anything, so what was read there is not used.
                value = tl.where(is_row, tl.load(raw, mask=mask, other=0.0), 0.0)
                bias = bias_ptr + number % NUM_PLACES * channels + half + columns
                score = tl.load(raw + channels, mask=mask, other=0.0)
                score = score + tl.load(bias, mask=mask, other=0.0)
                score = tl.where(is_row, score, LOWEST)
                higher = tl.maximum(peak, score)
                weight = tl.where(is_row, tl.exp(score - higher), 0.0)
                kept = tl.exp(peak - higher)
                total = total * kept + weight
                pooled = pooled * kept + weight * value
                peak = higher
            pooled = pooled / tl.where(total > 0, total, 1.0)
            tl.store(y_ptr + group * width + columns, pooled, mask=mask)
