"""Triton kernels of an indexer: scores of keys, and the best score of each block of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.records import load_coded, load_codes, load_scale


@triton.jit
def scores_kernel(
    q_ptr,
    weights_ptr,
    cache_ptr,
    scores_ptr,
    tables_ptr,
    requests_ptr,
    positions_ptr,
    listed_ptr,
    q_token_stride,
    q_head_stride,
    weights_stride,
    block_stride,
    table_stride,
    listed_stride,
    width,
    first_token,
    num_tokens,
    num_heads,
    per_block,
    tokens_per_row,
    num_shares,
    num_chosen,
    ROW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    LISTED: tl.constexpr,
    RECORD: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program has the keys of a share for `QUERIES` tokens, and skips where all are chosen.

    Args:
        width: of a row of scores; of those a token sees, others are not written.
        num_chosen: a token that sees no more keys needs no scores.
        LISTED: 0, or how many keys a number in the token's list of blocks stands for.
        ONE_SCALE: a record has one, which is taken after the product.
    """
    begin_token = first_token + tl.program_id(0) * QUERIES
    share = tl.program_id(1)
    rows = tl.arange(0, QUERIES * HEADS)
    tokens, heads = begin_token + rows // HEADS, rows % HEADS
    is_row = (tokens < num_tokens) & (heads < num_heads)
    dims = tl.arange(0, DIMS)
    places = tokens.to(tl.int64)[:, None] * q_token_stride + heads[:, None] * q_head_stride
    q = tl.load(
        q_ptr + places + dims[None, :],
        mask=is_row[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    ).to(DTYPE)
    weights = tl.load(weights_ptr + tokens * weights_stride + heads, mask=is_row, other=0.0)
    queries = begin_token + tl.arange(0, QUERIES)
    is_query = queries < num_tokens
    owners = tl.load(requests_ptr + queries, mask=is_query, other=-1)
    seen = tl.load(positions_ptr + queries, mask=is_query, other=-1) + 1
    seen = (seen // tokens_per_row).to(tl.int32)
    out = scores_ptr + (queries - first_token).to(tl.int64)[:, None] * width
    first_owner = tl.load(requests_ptr + begin_token)
    last_owner = tl.max(owners, 0)
    for request in range(first_owner, last_owner + 1):
        is_own = owners == request
        most = tl.max(tl.where(is_own, seen, 0), 0)
        end = most
        if LISTED > 0:
            end = width
        if most <= num_chosen:
            end = 0
        size = tl.cdiv(tl.cdiv(end, num_shares), KEYS) * KEYS
        table = tables_ptr + request * table_stride
        for start in range(share * size, tl.minimum(share * size + size, end), KEYS):
            columns = start + tl.arange(0, KEYS)
            numbers = columns
            is_key = columns < end
            if LISTED > 0:
                # One query to a tile.
                listed = listed_ptr + begin_token.to(tl.int64) * listed_stride
                named = tl.load(listed + columns // LISTED, mask=is_key, other=-1)
                numbers = named * LISTED + columns % LISTED
                is_key = is_key & (named >= 0) & (numbers < most)
            numbers = tl.where(is_key, numbers, 0)
            block = tl.load(table + numbers // per_block, mask=is_key, other=0).to(tl.int64)
            place = block * block_stride + numbers % per_block * ROW
            mask = is_key[:, None] & (dims < HEAD_DIM)[None, :]
            if RECORD is None:
                k = tl.load(cache_ptr + place[:, None] + dims[None, :], mask=mask, other=0.0)
            elif ONE_SCALE:
                k = load_codes(cache_ptr, place, dims, mask, RECORD)
            else:
                k = load_coded(cache_ptr, place, dims, mask, RECORD)
            s = tl.dot(q, tl.trans(k.to(DTYPE)), input_precision=PRECISION)
            s = tl.maximum(s, 0.0) * weights[:, None]
            total = tl.sum(tl.reshape(s, [QUERIES, HEADS, KEYS]), 1)
            if ONE_SCALE:
                total *= load_scale(cache_ptr, place, is_key, RECORD)[None, :]
            if LISTED > 0:
                total = tl.where(is_key[None, :], total, float("-inf"))
            is_wanted = is_own[:, None] & (columns < end)[None, :]
            tl.store(out + columns[None, :], total, mask=is_wanted)


@triton.jit
def block_scores_kernel(
    scores_ptr,
    best_ptr,
    positions_ptr,
    width,
    num_blocks,
    first_token,
    tokens_per_row,
    num_chosen,
    PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The best score of each block that a token sees; infinity in its newest."""
    token = tl.program_id(0)
    seen = (tl.load(positions_ptr + first_token + token) + 1) // tokens_per_row
    if seen <= num_chosen:
        return
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = tl.arange(0, ROWS)
    columns = blocks[:, None] * PER_BLOCK + inside[None, :]
    is_key = (inside < PER_BLOCK)[None, :] & (columns < seen)
    x = tl.load(scores_ptr + token.to(tl.int64) * width + columns, mask=is_key, other=float("-inf"))
    best = tl.where(blocks == (seen - 1) // PER_BLOCK, float("inf"), tl.max(x, 1))
    tl.store(best_ptr + token.to(tl.int64) * num_blocks + blocks, best, mask=blocks < num_blocks)
