"""The Triton kernel of paged attention for chunks: a program has a tile of queries.

Online softmax in units of log 2 (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao 2023,
arXiv:2307.08691).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def scores(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """Scores in units of log 2."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    if HAS_SOFTCAP:
        # tanh by way of exp, which cannot overflow here.
        e = tl.exp(-2.0 * tl.abs(s / softcap))
        t = (1.0 - e) / (1.0 + e)
        s = tl.where(s < 0.0, -t, t) * softcap
    return s * LOG2_E


@triton.jit
def add_keys(
    peak, total, values, q, k_ptr, v_ptr, table, key, positions, dims, is_dim,
    last_position, kv_head, k_block_stride, v_block_stride, scale, softcap, window,
    block_size, kv_width,
    HEAD_DIM: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention over the keys so far, and `KEYS` more from `key` on."""
    places = key + tl.arange(0, KEYS)
    is_key = places <= last_position
    block = tl.load(table + places // block_size, mask=is_key, other=0).to(tl.int64)
    inside = (places % block_size) * kv_width + kv_head * HEAD_DIM
    k_places = block[None, :] * k_block_stride + inside[None, :] + dims[:, None]
    v_places = block[:, None] * v_block_stride + inside[:, None] + dims[None, :]
    k = tl.load(k_ptr + k_places, mask=is_key[None, :] & is_dim[:, None], other=0.0)
    s = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
    if MASKED:
        is_seen = (places[None, :] <= positions[:, None]) & is_key[None, :]
        if HAS_WINDOW:
            is_seen = is_seen & (places[None, :] > positions[:, None] - window)
        s = tl.where(is_seen, s, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(s, 1))
    # A row that has seen nothing keeps a peak of -inf, and must not make nan of it.
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(s - base[:, None])
    kept = tl.exp2(peak - base)
    v = tl.load(v_ptr + v_places, mask=is_key[:, None] & is_dim[None, :], other=0.0)
    total = total * kept + tl.sum(weights, 1)
    values = values * kept[:, None]
    values = tl.dot(weights.to(v.dtype), v, values, input_precision=PRECISION)
    return new_peak, total, values


@triton.jit
def chunk_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
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
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = tl.load(tile_requests_ptr + tile)
    first = tl.load(tile_firsts_ptr + tile)
    start = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - start
    seq_len = tl.load(lens_ptr + request)
    rows = tl.arange(0, ROWS)
    queries = first + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < QUERIES * GROUP) & (queries < count)
    positions = seq_len - count + queries
    dims = tl.arange(0, DIMS)
    is_dim = dims < HEAD_DIM
    tokens = (start + queries).to(tl.int64)
    q = tl.load(
        q_ptr + tokens[:, None] * q_token_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    if HAS_SINKS:
        peak = tl.load(sinks_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        total = tl.full([ROWS], 1.0, tl.float32)
    else:
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, DIMS], tl.float32)
    first_position = seq_len - count + first
    last_position = tl.minimum(first_position + QUERIES, seq_len) - 1
    low = 0
    if HAS_WINDOW:
        low = tl.maximum(first_position - window + 1, 0) // KEYS * KEYS
    table = tables_ptr + request.to(tl.int64) * table_stride
    # Keys that every query of the tile sees need no mask.
    clear = low
    if not HAS_WINDOW:
        clear = (first_position + 1) // KEYS * KEYS
    for key in range(low, clear, KEYS):
        peak, total, values = add_keys(
            peak, total, values, q, k_ptr, v_ptr, table, key, positions, dims, is_dim,
            last_position, kv_head, k_block_stride, v_block_stride, scale, softcap, window,
            block_size, kv_width, HEAD_DIM, KEYS, False, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    for key in range(clear, last_position + 1, KEYS):
        peak, total, values = add_keys(
            peak, total, values, q, k_ptr, v_ptr, table, key, positions, dims, is_dim,
            last_position, kv_head, k_block_stride, v_block_stride, scale, softcap, window,
            block_size, kv_width, HEAD_DIM, KEYS, True, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    o = values / tl.where(total == 0.0, 1.0, total)[:, None]
    places = tokens[:, None] * num_q_heads + heads[:, None]
    tl.store(
        o_ptr + places * HEAD_DIM + dims[None, :],
        o.to(o_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_dim[None, :],
    )
    if WANTS_LSE:
        lse = (peak + tl.log2(total)) / LOG2_E
        tl.store(lse_ptr + tokens * num_q_heads + heads, lse, mask=is_row)
