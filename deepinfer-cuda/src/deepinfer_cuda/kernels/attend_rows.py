"""Triton kernel of attention to chosen rows of one or two caches: shares of each query's lists.

As in `attend_latent`, a row is key and value of all heads, and comes in quarters. The results of
shares are merged by `merge_rows_kernel`, with the sinks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.records import load_coded

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _part(
    base, places, is_key, dims, dtype,
    FIRST: tl.constexpr, SIZE: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """Dims from `FIRST` on, up to `SIZE`, of the rows in these places: [KEYS, dims]."""
    mask = is_key[:, None]
    if FIRST + dims.shape[0] > SIZE:
        mask = mask & (FIRST + dims < SIZE)[None, :]
    if RECORD is None:
        x = tl.load(base + places[:, None] + (FIRST + dims)[None, :], mask=mask, other=0.0)
    else:
        x = load_coded(base, places, FIRST + dims, mask, RECORD).to(dtype)
    return x


@triton.jit
def _add_rows(
    peak, total, v0, v1, v2, v3, q0, q1, q2, q3, q_rest, base, list_ptr, first, end, num_listed,
    block_stride, block_size, row_stride, scale,
    VALUE: tl.constexpr, DIM: tl.constexpr, VALUES: tl.constexpr, REST: tl.constexpr,
    KEYS: tl.constexpr, RECORD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention over the rows so far, and those that the list names from `first` to `end`."""
    QUARTER: tl.constexpr = VALUES // 4
    dims = tl.arange(0, QUARTER)
    dtype = q0.dtype
    listed = first + tl.arange(0, KEYS)
    slots = tl.load(list_ptr + listed, mask=listed < num_listed, other=-1)
    for key in range(first, end, KEYS):
        is_key = slots >= 0
        place = tl.maximum(slots, 0)
        places = (place // block_size).to(tl.int64) * block_stride + place % block_size * row_stride
        # Those of the next rows already, so that no load waits for another.
        listed = key + KEYS + tl.arange(0, KEYS)
        slots = tl.load(list_ptr + listed, mask=listed < num_listed, other=-1)
        c0 = _part(base, places, is_key, dims, dtype, 0 * QUARTER, VALUE, RECORD)
        c1 = _part(base, places, is_key, dims, dtype, 1 * QUARTER, VALUE, RECORD)
        c2 = _part(base, places, is_key, dims, dtype, 2 * QUARTER, VALUE, RECORD)
        c3 = _part(base, places, is_key, dims, dtype, 3 * QUARTER, VALUE, RECORD)
        s = tl.dot(q0, tl.trans(c0), input_precision=PRECISION)
        s = tl.dot(q1, tl.trans(c1), s, input_precision=PRECISION)
        s = tl.dot(q2, tl.trans(c2), s, input_precision=PRECISION)
        s = tl.dot(q3, tl.trans(c3), s, input_precision=PRECISION)
        if VALUE < DIM:
            rest = _part(base, places, is_key, tl.arange(0, REST), dtype, VALUE, DIM, RECORD)
            s = tl.dot(q_rest, tl.trans(rest), s, input_precision=PRECISION)
        s = tl.where(is_key[None, :], s * scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        # A query that has seen nothing keeps a peak of -inf, and must not make nan of it.
        base_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(s - base_peak[:, None])
        kept = tl.exp2(peak - base_peak)
        total = total * kept + tl.sum(weights, 1)
        w = weights.to(dtype)
        v0 = tl.dot(w, c0, v0 * kept[:, None], input_precision=PRECISION)
        v1 = tl.dot(w, c1, v1 * kept[:, None], input_precision=PRECISION)
        v2 = tl.dot(w, c2, v2 * kept[:, None], input_precision=PRECISION)
        v3 = tl.dot(w, c3, v3 * kept[:, None], input_precision=PRECISION)
        peak = new_peak
    return peak, total, v0, v1, v2, v3


@triton.jit
def _num_listed(list_ptr, SIZE: tl.constexpr, PLACES: tl.constexpr):
    """Up to where a list names rows."""
    places = tl.arange(0, PLACES)
    slots = tl.load(list_ptr + places, mask=places < SIZE, other=-1)
    return tl.max(tl.where(slots >= 0, places + 1, 0), 0)


@triton.jit
def _load_q(rows, dims, is_row, FIRST: tl.constexpr, SIZE: tl.constexpr):
    mask = is_row[:, None] & (FIRST + dims < SIZE)[None, :]
    return tl.load(rows + (FIRST + dims)[None, :], mask=mask, other=0.0)


@triton.jit
def _store_part(rows, dims, is_row, x, FIRST: tl.constexpr, SIZE: tl.constexpr):
    mask = is_row[:, None] & (FIRST + dims < SIZE)[None, :]
    tl.store(rows + (FIRST + dims)[None, :], x, mask=mask)


@triton.jit
def rows_kernel(
    q_ptr,
    cache_ptr,
    list_ptr,
    extra_cache_ptr,
    extra_list_ptr,
    partial_ptr,
    partial_lse_ptr,
    q_token_stride,
    q_head_stride,
    block_stride,
    block_size,
    list_stride,
    extra_block_stride,
    extra_block_size,
    extra_list_stride,
    scale,
    num_heads,
    num_shares,
    min_share,
    ROW_STRIDE: tl.constexpr,
    EXTRA_ROW_STRIDE: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    NUM_EXTRA: tl.constexpr,
    PLACES: tl.constexpr,
    EXTRA_PLACES: tl.constexpr,
    DIM: tl.constexpr,
    VALUE: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    RECORD: tl.constexpr,
    EXTRA_RECORD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    num_groups = tl.cdiv(num_heads, GROUP)
    token = (tl.program_id(0) // num_groups).to(tl.int64)
    share = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    heads = tl.program_id(0) % num_groups * GROUP + rows
    is_row = (rows < GROUP) & (heads < num_heads)
    # LAYOUT: partial results are [T, H, shares, value] and [T, H, shares].
    out_rows = (token * num_heads + heads) * num_shares + share
    list_ptr += token * list_stride
    extra_list_ptr += token * extra_list_stride
    num_listed = _num_listed(list_ptr, NUM_ROWS, PLACES)
    # Shares are of whole tiles; those of the second list follow the first's.
    split = tl.cdiv(num_listed, KEYS) * KEYS
    num_all = split
    num_extra = 0
    if NUM_EXTRA > 0:
        num_extra = _num_listed(extra_list_ptr, NUM_EXTRA, EXTRA_PLACES)
        num_all += tl.cdiv(num_extra, KEYS) * KEYS
    size = tl.maximum(min_share, tl.cdiv(tl.cdiv(num_all, num_shares), KEYS) * KEYS)
    begin = share * size
    end = tl.minimum(begin + size, num_all)
    if begin >= end:
        tl.store(partial_lse_ptr + out_rows, float("-inf"), mask=is_row)
        return

    QUARTER: tl.constexpr = VALUES // 4
    dims = tl.arange(0, QUARTER)
    q_rows = q_ptr + token * q_token_stride + heads[:, None] * q_head_stride
    q0 = _load_q(q_rows, dims, is_row, 0 * QUARTER, VALUE)
    q1 = _load_q(q_rows, dims, is_row, 1 * QUARTER, VALUE)
    q2 = _load_q(q_rows, dims, is_row, 2 * QUARTER, VALUE)
    q3 = _load_q(q_rows, dims, is_row, 3 * QUARTER, VALUE)
    q_rest = q0
    if VALUE < DIM:
        q_rest = _load_q(q_rows, tl.arange(0, REST), is_row, VALUE, DIM)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    v0 = tl.zeros([ROWS, QUARTER], tl.float32)
    v1 = tl.zeros([ROWS, QUARTER], tl.float32)
    v2 = tl.zeros([ROWS, QUARTER], tl.float32)
    v3 = tl.zeros([ROWS, QUARTER], tl.float32)
    scale *= LOG2_E
    peak, total, v0, v1, v2, v3 = _add_rows(
        peak, total, v0, v1, v2, v3, q0, q1, q2, q3, q_rest, cache_ptr, list_ptr,
        begin, tl.minimum(end, split), num_listed, block_stride, block_size, ROW_STRIDE, scale,
        VALUE, DIM, VALUES, REST, KEYS, RECORD, PRECISION,
    )  # fmt: skip
    if NUM_EXTRA > 0:
        peak, total, v0, v1, v2, v3 = _add_rows(
            peak, total, v0, v1, v2, v3, q0, q1, q2, q3, q_rest, extra_cache_ptr, extra_list_ptr,
            tl.maximum(begin - split, 0), end - split, num_extra, extra_block_stride,
            extra_block_size, EXTRA_ROW_STRIDE, scale, VALUE, DIM, VALUES, REST, KEYS,
            EXTRA_RECORD, PRECISION,
        )  # fmt: skip
    factor = (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    out = partial_ptr + out_rows[:, None] * VALUE
    _store_part(out, dims, is_row, v0 * factor, 0 * QUARTER, VALUE)
    _store_part(out, dims, is_row, v1 * factor, 1 * QUARTER, VALUE)
    _store_part(out, dims, is_row, v2 * factor, 2 * QUARTER, VALUE)
    _store_part(out, dims, is_row, v3 * factor, 3 * QUARTER, VALUE)
    tl.store(partial_lse_ptr + out_rows, peak + tl.log2(total), mask=is_row)


@triton.jit
def merge_rows_kernel(
    partial_ptr,
    partial_lse_ptr,
    sinks_ptr,
    o_ptr,
    lse_ptr,
    num_heads,
    num_shares,
    VALUE: tl.constexpr,
    VALUES: tl.constexpr,
    SHARES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    shares = tl.arange(0, SHARES)
    lse = tl.load(
        partial_lse_ptr + place * num_shares + shares, mask=shares < num_shares, other=float("-inf")
    )
    peak = tl.max(lse, 0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + place % num_heads).to(tl.float32) * LOG2_E
        peak = tl.maximum(peak, sink)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(lse - base)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - base)
    dims = tl.arange(0, VALUES)
    # An empty share was not written.
    partial = tl.load(
        partial_ptr + (place * num_shares + shares)[:, None] * VALUE + dims[None, :],
        mask=(lse > float("-inf"))[:, None] & (dims < VALUE)[None, :],
        other=0.0,
    )
    o = tl.sum(partial * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(o_ptr + place * VALUE + dims, o.to(o_ptr.dtype.element_ty), mask=dims < VALUE)
    if WANTS_LSE:
        tl.store(lse_ptr + place, (base + tl.log2(total)) / LOG2_E)
