"""Triton kernels of absorbed latent attention: shares of a cache, and their merging.

A row of the cache is key and value of all heads, so that a tile of heads reads it once. Online
softmax in units of log 2 (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load_keys(rows, dims, SIZE: tl.constexpr, FIRST: tl.constexpr):
    if FIRST + dims.shape[0] <= SIZE:
        return tl.load(rows + FIRST + dims[None, :])
    return tl.load(rows + FIRST + dims[None, :], mask=(FIRST + dims < SIZE)[None, :], other=0.0)


@triton.jit
def _load_quarter(rows, ranks, is_row, RANK: tl.constexpr, FIRST: tl.constexpr):
    mask = is_row[:, None] & (FIRST + ranks < RANK)[None, :]
    return tl.load(rows + FIRST + ranks[None, :], mask=mask, other=0.0)


@triton.jit
def _store_quarter(rows, ranks, is_row, values, RANK: tl.constexpr, FIRST: tl.constexpr):
    mask = is_row[:, None] & (FIRST + ranks < RANK)[None, :]
    tl.store(rows + FIRST + ranks[None, :], values.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def latent_kernel(
    q_ptr,
    q_rope_ptr,
    cache_ptr,
    o_ptr,
    lse_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    tile_requests_ptr,
    tile_firsts_ptr,
    q_token_stride,
    q_head_stride,
    rope_token_stride,
    rope_head_stride,
    block_stride,
    table_stride,
    scale,
    num_heads,
    block_size,
    num_shares,
    min_share,
    num_skipped,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    RANKS: tl.constexpr,
    ROPES: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_SHARED: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # Tiles of the same keys lie side by side, so that the second finds them in the L2 cache.
    num_groups = tl.cdiv(num_heads, GROUP)
    tile = tl.program_id(0) // num_groups
    share = tl.program_id(1)
    if IS_DECODE:
        request = tile + num_skipped
        first = 0
        start = request
        count = 1
    else:
        request = tl.load(tile_requests_ptr + tile)
        first = tl.load(tile_firsts_ptr + tile)
        start = tl.load(starts_ptr + request)
        count = tl.load(starts_ptr + request + 1) - start
    before = tl.load(lens_ptr + request) - count
    rows = tl.arange(0, ROWS)
    queries = first + rows // GROUP
    heads = tl.program_id(0) % num_groups * GROUP + rows % GROUP
    is_row = (rows < QUERIES * GROUP) & (queries < count) & (heads < num_heads)
    positions = before + queries
    tokens = (start + queries).to(tl.int64)
    # LAYOUT: with shares, partial results are [T, H, shares, R] and [T, H, shares], without the
    # tokens of earlier parts of the step.
    places = ((tokens - num_skipped) * num_heads + heads) * num_shares + share

    end = before + tl.minimum(first + QUERIES, count)
    begin = 0
    if IS_SHARED:
        size = tl.maximum(min_share, tl.cdiv(tl.cdiv(end, num_shares), KEYS) * KEYS)
        begin = share * size
        end = tl.minimum(begin + size, end)
        if begin >= end:
            tl.store(lse_ptr + places, float("-inf"), mask=is_row)
            return

    # Latents come in quarters: then the threads of a warp read few rows each, and hold few places.
    QUARTER: tl.constexpr = RANKS // 4
    ranks = tl.arange(0, QUARTER)
    ropes = tl.arange(0, ROPES)
    is_rope = ropes < ROPE
    q_row = q_ptr + tokens[:, None] * q_token_stride + heads[:, None] * q_head_stride
    q0 = _load_quarter(q_row, ranks, is_row, RANK, 0 * QUARTER)
    q1 = _load_quarter(q_row, ranks, is_row, RANK, 1 * QUARTER)
    q2 = _load_quarter(q_row, ranks, is_row, RANK, 2 * QUARTER)
    q3 = _load_quarter(q_row, ranks, is_row, RANK, 3 * QUARTER)
    q_row = q_rope_ptr + tokens[:, None] * rope_token_stride + heads[:, None] * rope_head_stride
    q_rope = tl.load(q_row + ropes[None, :], mask=is_row[:, None] & is_rope[None, :], other=0.0)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    v0 = tl.zeros([ROWS, QUARTER], tl.float32)
    v1 = tl.zeros([ROWS, QUARTER], tl.float32)
    v2 = tl.zeros([ROWS, QUARTER], tl.float32)
    v3 = tl.zeros([ROWS, QUARTER], tl.float32)
    table = tables_ptr + request.to(tl.int64) * table_stride
    keys = begin + tl.arange(0, KEYS)
    block = tl.load(table + keys // block_size, mask=keys < end, other=0)
    for key in range(begin, end, KEYS):
        keys = key + tl.arange(0, KEYS)
        is_key = keys < end
        place = block.to(tl.int64) * block_stride + keys % block_size * (RANK + ROPE)
        # Of the next keys already, so that no load waits for another.
        after = keys + KEYS
        block = tl.load(table + after // block_size, mask=after < end, other=0)
        # Whatever lies behind the last key is finite, and so is block 0: weights of 0 undo it.
        row = cache_ptr + place[:, None]
        c0 = _load_keys(row, ranks, RANK, 0 * QUARTER)
        c1 = _load_keys(row, ranks, RANK, 1 * QUARTER)
        c2 = _load_keys(row, ranks, RANK, 2 * QUARTER)
        c3 = _load_keys(row, ranks, RANK, 3 * QUARTER)
        r = _load_keys(row + RANK, ropes, ROPE, 0)
        s = tl.dot(q0, tl.trans(c0), input_precision=PRECISION)
        s = tl.dot(q1, tl.trans(c1), s, input_precision=PRECISION)
        s = tl.dot(q2, tl.trans(c2), s, input_precision=PRECISION)
        s = tl.dot(q3, tl.trans(c3), s, input_precision=PRECISION)
        s = tl.dot(q_rope, tl.trans(r), s, input_precision=PRECISION) * (scale * LOG2_E)
        is_seen = (keys[None, :] <= positions[:, None]) & is_key[None, :]
        s = tl.where(is_seen, s, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        # A row that has seen nothing keeps a peak of -inf, and must not make nan of it.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(s - base[:, None])
        kept = tl.exp2(peak - base)
        total = total * kept + tl.sum(weights, 1)
        w = weights.to(c0.dtype)
        v0 = tl.dot(w, c0, v0 * kept[:, None], input_precision=PRECISION)
        v1 = tl.dot(w, c1, v1 * kept[:, None], input_precision=PRECISION)
        v2 = tl.dot(w, c2, v2 * kept[:, None], input_precision=PRECISION)
        v3 = tl.dot(w, c3, v3 * kept[:, None], input_precision=PRECISION)
        peak = new_peak

    factor = (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    row = o_ptr + places[:, None] * RANK
    _store_quarter(row, ranks, is_row, v0 * factor, RANK, 0 * QUARTER)
    _store_quarter(row, ranks, is_row, v1 * factor, RANK, 1 * QUARTER)
    _store_quarter(row, ranks, is_row, v2 * factor, RANK, 2 * QUARTER)
    _store_quarter(row, ranks, is_row, v3 * factor, RANK, 3 * QUARTER)
    lse = peak + tl.log2(total)
    if IS_SHARED:
        tl.store(lse_ptr + places, lse, mask=is_row)
    elif WANTS_LSE:
        tl.store(lse_ptr + places, lse / LOG2_E, mask=is_row)


@triton.jit
def merge_latents_kernel(
    partial_ptr,
    partial_lse_ptr,
    o_ptr,
    lse_ptr,
    num_shares,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SHARES: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    shares = tl.arange(0, SHARES)
    lse = tl.load(
        partial_lse_ptr + place * num_shares + shares, mask=shares < num_shares, other=float("-inf")
    )
    peak = tl.max(lse, 0)
    weights = tl.exp2(lse - peak)
    total = tl.sum(weights, 0)
    ranks = tl.arange(0, RANKS)
    is_rank = ranks < RANK
    # An empty share was not written.
    partial = tl.load(
        partial_ptr + (place * num_shares + shares)[:, None] * RANK + ranks[None, :],
        mask=(lse > float("-inf"))[:, None] & is_rank[None, :],
        other=0.0,
    )
    o = tl.sum(partial * weights[:, None], 0) / total
    tl.store(o_ptr + place * RANK + ranks, o.to(o_ptr.dtype.element_ty), mask=is_rank)
    if WANTS_LSE:
        tl.store(lse_ptr + place, (peak + tl.log2(total)) / LOG2_E)
