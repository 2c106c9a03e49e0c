"""Triton kernels of attention whose bits for a query do not depend on batch or chunking.

Keys come in tiles of one length, anchored at position 0, and tile t belongs to lane t mod `LANES`:
a query attends within each lane to its tiles in order, and the lanes are merged in order. A tile or
a lane that a query does not see changes nothing. Lanes are the turns of one program, or programs of
their own: the arithmetic is the same.

INVARIANT: both are launched without fused multiply-adds, which compilers place as they like.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.attend import LOG2_E, add_keys


@triton.jit
def _merge(peak, total, values, lane_peak, lane_total, lane_values):
    """Add a lane, [M] and [M] and [M, D]."""
    new_peak = tl.maximum(peak, lane_peak)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    kept, added = tl.exp2(peak - base), tl.exp2(lane_peak - base)
    total = total * kept + lane_total * added
    values = values * kept[:, None] + lane_values * added[:, None]
    return new_peak, total, values


@triton.jit
def _finish(
    peak, total, values, o_ptr, lse_ptr, places, dims, is_row, is_dim,
    HEAD_DIM: tl.constexpr, WANTS_LSE: tl.constexpr,
):  # fmt: skip
    o = values / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        o_ptr + places[:, None] * HEAD_DIM + dims[None, :],
        o.to(o_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_dim[None, :],
    )
    if WANTS_LSE:
        tl.store(lse_ptr + places, (peak + tl.log2(total)) / LOG2_E, mask=is_row)


@triton.jit
def _start(sinks_ptr, heads, is_row, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Peak and total of rows that have seen their sink or nothing."""
    if HAS_SINKS:
        peak = tl.load(sinks_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        total = tl.full([ROWS], 1.0, tl.float32)
    else:
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    return peak, total


@triton.jit
def lanes_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    partial_ptr,
    partial_peaks_ptr,
    partial_totals_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    tile_requests_ptr,
    tile_firsts_ptr,
    sinks_ptr,
    q_token_stride,
    q_head_stride,
    k_block_stride,
    v_block_stride,
    table_stride,
    scale,
    softcap,
    window,
    num_q_heads,
    block_size,
    kv_width,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    IS_SHARED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head, tile, first_lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = tl.load(tile_requests_ptr + tile)
    first = tl.load(tile_firsts_ptr + tile)
    start = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - start
    seq_len = tl.load(lens_ptr + request)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    queries = first + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < QUERIES * GROUP) & (queries < count)
    is_dim = dims < HEAD_DIM
    positions = seq_len - count + queries
    tokens = (start + queries).to(tl.int64)
    q = tl.load(
        q_ptr + tokens[:, None] * q_token_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    first_position = seq_len - count + first
    last_position = tl.minimum(first_position + QUERIES, seq_len) - 1
    low = 0
    if HAS_WINDOW:
        low = tl.maximum(first_position - window + 1, 0) // KEYS
    num_tiles = last_position // KEYS + 1
    table = tables_ptr + request.to(tl.int64) * table_stride
    places = tokens * num_q_heads + heads
    peak, total = _start(sinks_ptr, heads, is_row, ROWS, HAS_SINKS)
    values = tl.zeros([ROWS, DIMS], tl.float32)
    num_lanes = 1 if IS_SHARED else LANES
    for lane in range(first_lane, first_lane + num_lanes):
        lane_peak = tl.full([ROWS], float("-inf"), tl.float32)
        lane_total = tl.zeros([ROWS], tl.float32)
        lane_values = tl.zeros([ROWS, DIMS], tl.float32)
        first_tile = low + (lane + LANES - low % LANES) % LANES
        for key in range(first_tile * KEYS, num_tiles * KEYS, LANES * KEYS):
            lane_peak, lane_total, lane_values = add_keys(
                lane_peak, lane_total, lane_values, q, k_ptr, v_ptr, table, key, positions, dims,
                is_dim, last_position, kv_head, k_block_stride, v_block_stride, scale, softcap,
                window, block_size, kv_width,
                HEAD_DIM, KEYS, True, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
        if IS_SHARED:
            # LAYOUT: partial results are [T, H, lanes, D] and [T, H, lanes].
            partial = places * LANES + lane
            tl.store(
                partial_ptr + partial[:, None] * HEAD_DIM + dims[None, :],
                lane_values,
                mask=is_row[:, None] & is_dim[None, :],
            )
            tl.store(partial_peaks_ptr + partial, lane_peak, mask=is_row)
            tl.store(partial_totals_ptr + partial, lane_total, mask=is_row)
        else:
            peak, total, values = _merge(peak, total, values, lane_peak, lane_total, lane_values)
    if not IS_SHARED:
        _finish(
            peak, total, values, o_ptr, lse_ptr, places, dims, is_row, is_dim, HEAD_DIM, WANTS_LSE
        )


@triton.jit
def merge_lanes_kernel(
    o_ptr,
    lse_ptr,
    partial_ptr,
    partial_peaks_ptr,
    partial_totals_ptr,
    sinks_ptr,
    num_q_heads,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):
    places = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    dims = tl.arange(0, DIMS)
    is_row, is_dim = places >= 0, dims < HEAD_DIM
    peak, total = _start(sinks_ptr, places % num_q_heads, is_row, 1, HAS_SINKS)
    values = tl.zeros([1, DIMS], tl.float32)
    for lane in tl.static_range(LANES):
        partial = places * LANES + lane
        lane_values = tl.load(
            partial_ptr + partial[:, None] * HEAD_DIM + dims[None, :],
            mask=is_dim[None, :],
            other=0.0,
        )
        lane_peak = tl.load(partial_peaks_ptr + partial)
        lane_total = tl.load(partial_totals_ptr + partial)
        peak, total, values = _merge(peak, total, values, lane_peak, lane_total, lane_values)
    _finish(peak, total, values, o_ptr, lse_ptr, places, dims, is_row, is_dim, HEAD_DIM, WANTS_LSE)
