"""The Triton kernel that picks the highest scores of a row without sorting it.

The score down to which there are as many as wanted is found eight bits at a time, by counts of
integers: what is picked is what sorting would pick, in order of position.
"""

from __future__ import annotations

import triton
import triton.language as tl

BINS = tl.constexpr(256)


@triton.jit
def _keys(x):
    """Unsigned integers in the order of these float32; the two zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _narrow(scores, count, limit, wanted, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Fix eight bits of the key down to which there are `wanted` among those that agree above.

    Returns:
        the key, and how many are wanted among those that agree with it.
    """
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(scores + at, mask=at < count, other=float("-inf"))
        keys = _keys(x)
        is_open = (at < count) & (x > float("-inf"))
        if SHIFT < 24:
            is_open = is_open & ((keys >> (SHIFT + 8)) == (limit >> (SHIFT + 8)))
        counts += tl.histogram(((keys >> SHIFT) & 255).to(tl.int32), BINS, mask=is_open)
    # How many have this digit or a higher one; the last digit where that is enough.
    bins = tl.arange(0, BINS)
    above = tl.cumsum(counts, 0, reverse=True)
    digit = tl.sum((above >= wanted).to(tl.int32), 0) - 1
    wanted -= tl.sum(tl.where(bins > digit, counts, 0), 0)
    return limit | (digit.to(tl.uint32) << SHIFT), wanted


@triton.jit
def pick_kernel(
    scores_ptr,
    out_ptr,
    tables_ptr,
    requests_ptr,
    positions_ptr,
    listed_ptr,
    width,
    table_stride,
    listed_stride,
    first_token,
    per_block,
    tokens_per_row,
    rows_per_score,
    NUM_PICKED: tl.constexpr,
    LISTED: tl.constexpr,
    WANTS_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program has a token. Scores are not read where all are picked.

    Args:
        tokens_per_row, rows_per_score: with a token's position, how many scores there are.
        LISTED: as in `scores_kernel`; then all of the row counts but -inf.
        WANTS_SLOTS: slots instead of numbers.
    """
    place = tl.program_id(0)
    token = (first_token + place).to(tl.int64)
    scores = scores_ptr + place.to(tl.int64) * width
    out = out_ptr + token * NUM_PICKED
    seen = ((tl.load(positions_ptr + token) + 1) // tokens_per_row).to(tl.int32)
    count = tl.cdiv(seen, rows_per_score)
    if LISTED > 0:
        count = width
    columns = tl.arange(0, BLOCK)

    num_valid = count
    if LISTED > 0:
        num_valid = 0
        for start in range(0, count, BLOCK):
            at = start + columns
            x = tl.load(scores + at, mask=at < count, other=float("-inf"))
            num_valid += tl.sum((x > float("-inf")).to(tl.int32), 0)
    limit = tl.zeros([], tl.uint32)
    wanted = tl.minimum(num_valid, NUM_PICKED)
    if num_valid > NUM_PICKED:
        limit, wanted = _narrow(scores, count, limit, wanted, 24, BLOCK)
        limit, wanted = _narrow(scores, count, limit, wanted, 16, BLOCK)
        limit, wanted = _narrow(scores, count, limit, wanted, 8, BLOCK)
        limit, wanted = _narrow(scores, count, limit, wanted, 0, BLOCK)

    # Of those that equal the limit the first `wanted` are picked.
    num_equal = 0
    num_out = 0
    request = tl.load(requests_ptr + token)
    table = tables_ptr + request.to(tl.int64) * table_stride
    for start in range(0, count, BLOCK):
        at = start + columns
        is_picked = at < count
        if (num_valid > NUM_PICKED) | (LISTED > 0):
            x = tl.load(scores + at, mask=at < count, other=float("-inf"))
            is_picked = is_picked & (x > float("-inf"))
            if num_valid > NUM_PICKED:
                keys = _keys(x)
                is_equal = is_picked & (keys == limit)
                ranks = num_equal + tl.cumsum(is_equal.to(tl.int32), 0)
                is_picked = is_picked & ((keys > limit) | (is_equal & (ranks <= wanted)))
                num_equal += tl.sum(is_equal.to(tl.int32), 0)
        numbers = at
        if LISTED > 0:
            listed = listed_ptr + token * listed_stride
            named = tl.load(listed + at // LISTED, mask=is_picked, other=0)
            numbers = named * LISTED + at % LISTED
        found = numbers
        if WANTS_SLOTS:
            block = tl.load(table + numbers // per_block, mask=is_picked, other=0)
            found = block * per_block + numbers % per_block
        places = num_out + tl.cumsum(is_picked.to(tl.int32), 0) - 1
        tl.store(out + places, found, mask=is_picked)
        num_out += tl.sum(is_picked.to(tl.int32), 0)
    for start in range(num_out, NUM_PICKED, BLOCK):
        tl.store(out + start + columns, -1, mask=start + columns < NUM_PICKED)
