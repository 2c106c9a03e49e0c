"""Triton kernels of paged attention for single queries: shares of a cache, and their merging.

Key heads that lie beside each other in the cache are keys of one tile, and the query heads of all
of them its rows, where a row gives weight to its own head's keys only. A tile wants 16 rows anyway,
and so reads longer stretches of memory.

Loads of keys are to run ahead of products, which Triton arranges only where their addresses come
from no load of the same turn: a block's number is read one turn before. Online softmax in units of
log 2 (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.attend import LOG2_E, scores
from deepinfer_cuda.kernels.overlap import let_next_start, prefetch, wait_for_inputs


@triton.jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    sinks_ptr,
    tables_ptr,
    lens_ptr,
    q_token_stride,
    q_head_stride,
    k_block_stride,
    v_block_stride,
    table_stride,
    scale,
    softcap,
    window,
    num_q_heads,
    kv_width,
    num_splits,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIMS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    # Programs that read the same stretch of memory start together.
    first_head, split = tl.program_id(0) * HEADS, tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    seq_len = tl.load(lens_ptr + request)
    table = tables_ptr + request * table_stride
    low = 0
    if HAS_WINDOW:
        low = tl.maximum(seq_len - window, 0) // TOKENS * TOKENS
    share = tl.cdiv(tl.cdiv(seq_len - low, num_splits), TOKENS) * TOKENS
    begin = low + split * share
    end = tl.minimum(begin + share, seq_len)
    if OVERLAP and PREFETCHED > 0:
        ahead = tl.minimum(begin + tl.arange(0, PREFETCHED), seq_len - 1)
        ahead_blocks = tl.load(table + ahead // BLOCK_SIZE).to(tl.int64)
        shifts = ahead % BLOCK_SIZE * kv_width + first_head * HEAD_DIM
        prefetch(k_ptr + ahead_blocks * k_block_stride + shifts)
        prefetch(v_ptr + ahead_blocks * v_block_stride + shifts)
    keys = tl.arange(0, TOKENS * HEADS)
    tokens, rows, dims = keys // HEADS, tl.arange(0, ROWS), tl.arange(0, DIMS)
    heads = first_head * GROUP + rows
    is_row, is_dim = rows < HEADS * GROUP, dims < HEAD_DIM
    is_own = (rows // GROUP)[:, None] == (keys % HEADS)[None, :]
    # LAYOUT: a token of a block is a row of all its heads.
    places = tokens * kv_width + (first_head + keys % HEADS) * HEAD_DIM
    offsets = places[:, None] + dims[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, DIMS], tl.float32)
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    q = tl.load(
        q_ptr + request * q_token_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    block = tl.load(table + begin // BLOCK_SIZE, mask=begin < end, other=0).to(tl.int64)
    for key in range(begin, end, TOKENS):
        is_key = key + tokens < end
        if BLOCK_SIZE % TOKENS == 0:
            # What lies behind the end is finite, and gets no weight.
            inside = key % BLOCK_SIZE * kv_width
            k_place = k_ptr + (block * k_block_stride + inside) + offsets
            v_place = v_ptr + (block * v_block_stride + inside) + offsets
            is_loaded = is_dim[None, :]
        else:
            place = key + tokens
            blocks = tl.load(table + place // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
            shift = (place % BLOCK_SIZE - tokens) * kv_width
            k_place = k_ptr + (blocks * k_block_stride + shift)[:, None] + offsets
            v_place = v_ptr + (blocks * v_block_stride + shift)[:, None] + offsets
            is_loaded = is_key[:, None] & is_dim[None, :]
        if DIMS == HEAD_DIM and BLOCK_SIZE % TOKENS == 0:
            k = tl.load(k_place)
            v = tl.load(v_place)
        else:
            k = tl.load(k_place, mask=is_loaded, other=0.0)
            v = tl.load(v_place, mask=is_loaded, other=0.0)
        if BLOCK_SIZE % TOKENS == 0:
            # One turn ahead, so that the loads of keys do not wait for it.
            then = key + TOKENS
            block = tl.load(table + then // BLOCK_SIZE, mask=then < end, other=0).to(tl.int64)
        s = scores(q, tl.trans(k), scale, softcap, HAS_SOFTCAP, PRECISION)
        is_seen = is_own & is_key[None, :]
        if HAS_WINDOW:
            is_seen = is_seen & (key + tokens >= seq_len - window)[None, :]
        s = tl.where(is_seen, s, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        # A row that has seen nothing keeps a peak of -inf, and must not make nan of it.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(s - base[:, None])
        kept = tl.exp2(peak - base)
        total = total * kept + tl.sum(weights, 1)
        values = values * kept[:, None]
        values = tl.dot(weights.to(v.dtype), v, values, input_precision=PRECISION)
        peak = new_peak
    is_place = is_row[:, None] & is_dim[None, :]
    if IS_SPLIT:
        # LAYOUT: partial results are [B, H, splits, D] and [B, H, splits], normalised.
        place = (request * num_q_heads + heads) * num_splits + split
        o = values / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dims[None, :], o, mask=is_place)
        tl.store(partial_lse_ptr + place, peak + tl.log2(total), mask=is_row)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
            new_peak = tl.maximum(peak, sink)
            kept = tl.exp2(peak - new_peak)
            total = total * kept + tl.exp2(sink - new_peak)
            values = values * kept[:, None]
            peak = new_peak
        place = request * num_q_heads + heads
        o = values / tl.where(total == 0.0, 1.0, total)[:, None]
        o_place = o_ptr + place[:, None] * HEAD_DIM + dims[None, :]
        tl.store(o_place, o.to(o_ptr.dtype.element_ty), mask=is_place)
        if WANTS_LSE:
            tl.store(lse_ptr + place, (peak + tl.log2(total)) / LOG2_E, mask=is_row)


@triton.jit
def merge_kernel(
    partial_ptr,
    partial_lse_ptr,
    sinks_ptr,
    o_ptr,
    lse_ptr,
    num_q_heads,
    num_splits,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    is_split = splits < num_splits
    dims = tl.arange(0, DIMS)
    is_dim = dims < HEAD_DIM
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    lse = tl.load(partial_lse_ptr + place * num_splits + splits, mask=is_split, other=float("-inf"))
    partial = tl.load(
        partial_ptr + (place * num_splits + splits)[:, None] * HEAD_DIM + dims[None, :],
        mask=is_split[:, None] & is_dim[None, :],
        other=0.0,
    )
    peak = tl.max(lse, 0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + place % num_q_heads).to(tl.float32) * LOG2_E
        peak = tl.maximum(peak, sink)
    weights = tl.exp2(lse - peak)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - peak)
    o = tl.sum(partial * weights[:, None], 0) / total
    tl.store(o_ptr + place * HEAD_DIM + dims, o.to(o_ptr.dtype.element_ty), mask=is_dim)
    if WANTS_LSE:
        tl.store(lse_ptr + place, (peak + tl.log2(total)) / LOG2_E)
