"""Triton kernels of expanded latent attention: rows of a cache side by side, tiles of queries.

A head's key has a part of its own and a rotated part, which all heads share and which stays where
it was gathered. Online softmax as in `attend`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def gather_kernel(
    cache_ptr,
    rows_ptr,
    slots_ptr,
    block_stride,
    block_size,
    WIDTH: tl.constexpr,
    DIMS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    dims = tl.arange(0, DIMS)
    is_dim = dims < WIDTH
    place = tl.maximum(slot, 0)
    place = place // block_size * block_stride + place % block_size * WIDTH
    x = tl.load(cache_ptr + place + dims, mask=is_dim, other=0.0)
    tl.store(rows_ptr + row * WIDTH + dims, tl.where(slot < 0, 0.0, x), mask=is_dim)


@triton.jit
def _load(rows, dims, SIZE: tl.constexpr):
    if dims.shape[0] == SIZE:
        return tl.load(rows + dims[None, :])
    return tl.load(rows + dims[None, :], mask=(dims < SIZE)[None, :], other=0.0)


@triton.jit
def _add_keys(
    peak, total, values, q, q_rope, kv_ptr, rope_ptr, keys, places, positions, scale,
    kv_stride, rope_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, NOPES: tl.constexpr,
    ROPES: tl.constexpr, VALUES: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention over the keys so far, and those in these places."""
    kv_rows = kv_ptr + places[:, None].to(tl.int64) * kv_stride
    k = _load(kv_rows, tl.arange(0, NOPES), NOPE)
    r = _load(rope_ptr + places[:, None].to(tl.int64) * rope_stride, tl.arange(0, ROPES), ROPE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    s = tl.dot(q_rope, tl.trans(r), s, input_precision=PRECISION) * scale
    if MASKED:
        s = tl.where(keys[None, :] <= positions[:, None], s, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(s, 1))
    weights = tl.exp2(s - new_peak[:, None])
    kept = tl.exp2(peak - new_peak)
    v = _load(kv_rows + NOPE, tl.arange(0, VALUES), VALUE)
    total = total * kept + tl.sum(weights, 1)
    values = tl.dot(weights.to(v.dtype), v, values * kept[:, None], input_precision=PRECISION)
    return new_peak, total, values


@triton.jit
def expanded_kernel(
    q_ptr,
    kv_ptr,
    rows_ptr,
    o_ptr,
    lse_ptr,
    starts_ptr,
    lens_ptr,
    ends_ptr,
    tile_requests_ptr,
    tile_firsts_ptr,
    q_token_stride,
    q_head_stride,
    kv_stride,
    scale,
    num_heads,
    first_head,
    RANK: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    VALUE: tl.constexpr,
    NOPES: tl.constexpr,
    ROPES: tl.constexpr,
    VALUES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    head = first_head + tl.program_id(1)
    request = tl.load(tile_requests_ptr + tile)
    first = tl.load(tile_firsts_ptr + tile)
    start = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - start
    seq_len = tl.load(lens_ptr + request)
    first_row = (tl.load(ends_ptr + request) - seq_len).to(tl.int64)
    # LAYOUT: rows of the cache [N, R + Dr]; keys and values of some heads [N, heads, Dn + Dv].
    rope_ptr = rows_ptr + first_row * (RANK + ROPE) + RANK
    kv_ptr += first_row * kv_stride + tl.program_id(1) * (NOPE + VALUE)
    queries = first + tl.arange(0, ROWS)
    is_row = queries < count
    positions = seq_len - count + queries
    tokens = (start + queries).to(tl.int64)
    q_rows = q_ptr + tokens[:, None] * q_token_stride + head * q_head_stride
    nopes = tl.arange(0, NOPES)
    ropes = tl.arange(0, ROPES)
    q = tl.load(q_rows + nopes[None, :], mask=is_row[:, None] & (nopes < NOPE)[None, :], other=0.0)
    q_rope = tl.load(
        q_rows + NOPE + ropes[None, :], mask=is_row[:, None] & (ropes < ROPE)[None, :], other=0.0
    )
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, VALUES], tl.float32)
    scale *= LOG2_E
    # Keys that every query of the tile sees need no mask, and there is a row for each.
    first_position = seq_len - count + first
    clear = (first_position + 1) // KEYS * KEYS
    end = tl.minimum(first_position + ROWS, seq_len)
    for key in range(0, clear, KEYS):
        keys = key + tl.arange(0, KEYS)
        peak, total, values = _add_keys(
            peak, total, values, q, q_rope, kv_ptr, rope_ptr, keys, keys, positions, scale,
            kv_stride, RANK + ROPE, NOPE, ROPE, VALUE, NOPES, ROPES, VALUES, False, PRECISION,
        )  # fmt: skip
    for key in range(clear, end, KEYS):
        keys = key + tl.arange(0, KEYS)
        places = tl.minimum(keys, seq_len - 1)
        peak, total, values = _add_keys(
            peak, total, values, q, q_rope, kv_ptr, rope_ptr, keys, places, positions, scale,
            kv_stride, RANK + ROPE, NOPE, ROPE, VALUE, NOPES, ROPES, VALUES, True, PRECISION,
        )  # fmt: skip
    o = values / total[:, None]
    places = tokens * num_heads + head
    dims = tl.arange(0, VALUES)
    tl.store(
        o_ptr + places[:, None] * VALUE + dims[None, :],
        o.to(o_ptr.dtype.element_ty),
        mask=is_row[:, None] & (dims < VALUE)[None, :],
    )
    if WANTS_LSE:
        tl.store(lse_ptr + places, (peak + tl.log2(total)) / LOG2_E, mask=is_row)
