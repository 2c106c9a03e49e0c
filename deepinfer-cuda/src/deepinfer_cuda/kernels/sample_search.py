"""Finding in a row, without sorting it, the token up to which there is as much as wanted.

Its key is found two bits at a time, by sums over the tokens that are better. Sums are of integers
and so exact in any order: what is found is what sorting would find. A program has a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

WEIGHT_ONE = tl.constexpr(1099511627776.0)
"""Weight of a token with logit 0: 40-bit fixed point."""
TOP_SHIFT, MIDDLE_SHIFT, LOW_SHIFT = (tl.constexpr(shift) for shift in (30, 22, 20))
OTHERS = tl.constexpr(16)
"""Tokens that all of the best are compared with together."""
LARGEST = tl.constexpr(3.4028234663852886e38)
NEAR = tl.constexpr(1 << 22)
"""Keys that agree in bits 22 and above: below that, only tokens with such keys are looked at."""


@triton.jit
def largest_of(logits_ptr, vocab_size, BLOCK: tl.constexpr):
    """The largest logit, or the largest number if that is infinite."""
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + columns, mask=columns < vocab_size, other=float("-inf"))
        peak = tl.maximum(peak, x)
    return tl.minimum(tl.maximum(tl.max(peak, 0), -LARGEST), LARGEST)


@triton.jit
def keys_of(values):
    """int64 keys in [0, 2^32) that rise as the value falls."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0, 0x7FFFFFFF - bits, (bits & 0x7FFFFFFF) + 0x80000000)


@triton.jit
def value_of(key):
    """The value that has a key."""
    is_negative = key > 0x7FFFFFFF
    bits = tl.where(is_negative, key - 0x80000000, 0x7FFFFFFF - key).to(tl.int32)
    value = bits.to(tl.float32, bitcast=True)
    return tl.where(is_negative, -value, value)


@triton.jit
def weights_of(values):
    """Fixed-point exp(values) for values <= 0; inf counts as 0."""
    return (tl.exp(tl.minimum(values, 0.0)) * WEIGHT_ONE).to(tl.int64)


@triton.jit
def _narrow(
    values_ptr, size, first, before, wanted,
    FROM: tl.constexpr, TO: tl.constexpr, OF_WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fix bits `FROM + 1` to `TO` of the key up to which there is as much as wanted.

    Args:
        first: the key with the bits above fixed and 0 below.
        before: how much there is of keys below; less than wanted.

    Returns:
        the key, and how much there is of keys below it.
    """
    for step in range((FROM - TO) // 2 + 1):
        unit = tl.full([], 1, tl.int64) << (FROM - 2 * step)
        one, two, three = first + unit, first + 2 * unit, first + 3 * unit
        sum_1, sum_2, sum_3 = before * 0, before * 0, before * 0
        for start in range(0, size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_column = columns < size
            values = tl.load(values_ptr + columns, mask=is_column, other=float("-inf"))
            keys = keys_of(values)
            amounts = (is_column & (keys >= first)).to(tl.int64)
            if OF_WEIGHTS:
                amounts *= weights_of(values)
            sum_1 += tl.sum(tl.where(keys < one, amounts, 0), 0)
            sum_2 += tl.sum(tl.where(keys < two, amounts, 0), 0)
            sum_3 += tl.sum(tl.where(keys < three, amounts, 0), 0)
        is_upper = before + sum_2 < wanted
        middle, sum_middle = tl.where(is_upper, three, one), tl.where(is_upper, sum_3, sum_1)
        is_above = before + sum_middle < wanted
        first = tl.where(is_above, middle, tl.where(is_upper, two, first))
        before += tl.where(is_above, sum_middle, tl.where(is_upper, sum_2, 0))
    return first, before


@triton.jit
def find(
    values_ptr, packed_ptr, size, wanted, OF_WEIGHTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The key up to which there is as much as wanted, and how much there is of keys below it.

    Args:
        packed_ptr: room for `size` values.
        wanted: int64, of tokens or of weights.
    """
    first, before = _narrow(
        values_ptr, size, wanted * 0, wanted * 0, wanted,
        TOP_SHIFT, MIDDLE_SHIFT, OF_WEIGHTS, BLOCK,
    )  # fmt: skip
    end = first + NEAR
    num_packed = 0
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_column = columns < size
        values = tl.load(values_ptr + columns, mask=is_column, other=float("-inf"))
        keys = keys_of(values)
        is_near = (is_column & (keys >= first) & (keys < end)).to(tl.int32)
        places = num_packed + tl.cumsum(is_near, 0) - 1
        tl.store(packed_ptr + places, values, mask=is_near > 0)
        num_packed += tl.sum(is_near, 0)
    # Other threads of the program read what was stored.
    tl.debug_barrier()
    return _narrow(packed_ptr, num_packed, first, before, wanted, LOW_SHIFT, 0, OF_WEIGHTS, BLOCK)


@triton.jit
def take_best(
    logits_ptr, packed_ptr, values_ptr, ids_ptr, vocab_size, num_best,
    BEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store logits and ids of the best tokens, best first, ties to the lower id.

    Args:
        packed_ptr: room for `vocab_size` values.
        BEST: a power of 2, at least `num_best`.
    """
    wanted = num_best.to(tl.int64)
    last, before = find(logits_ptr, packed_ptr, vocab_size, wanted, False, BLOCK)
    num_ties, num_seen, num_kept = wanted - before, 0, 0
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_column = columns < vocab_size
        x = tl.load(logits_ptr + columns, mask=is_column, other=float("-inf"))
        keys = keys_of(x)
        is_tie = (is_column & (keys == last)).to(tl.int32)
        number = num_seen + tl.cumsum(is_tie, 0)
        is_kept = is_column & ((keys < last) | ((is_tie > 0) & (number <= num_ties)))
        places = num_kept + tl.cumsum(is_kept.to(tl.int32), 0) - 1
        tl.store(packed_ptr + places, x, mask=is_kept)
        tl.store(ids_ptr + places, columns, mask=is_kept)
        num_seen += tl.sum(is_tie, 0)
        num_kept += tl.sum(is_kept.to(tl.int32), 0)
    tl.debug_barrier()
    places = tl.arange(0, BEST)
    is_place = places < num_best
    x = tl.load(packed_ptr + places, mask=is_place, other=float("-inf"))
    ids = tl.load(ids_ptr + places, mask=is_place, other=0)
    # They are in order of ids, so that of equals the first ranks higher.
    ranks, keys = tl.zeros([BEST], tl.int32), keys_of(x)
    for start in range(0, num_best, OTHERS):
        others = start + tl.arange(0, OTHERS)
        is_other = others < num_best
        theirs = keys_of(tl.load(packed_ptr + others, mask=is_other, other=float("-inf")))
        is_better = (theirs[None, :] < keys[:, None]) | (
            (theirs[None, :] == keys[:, None]) & (others[None, :] < places[:, None])
        )
        ranks += tl.sum((is_better & is_other[None, :]).to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(values_ptr + ranks, x, mask=is_place)
    tl.store(ids_ptr + ranks, ids, mask=is_place)
    tl.debug_barrier()
