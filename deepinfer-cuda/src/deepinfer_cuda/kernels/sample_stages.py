"""Temperature, min_p, top_k and top_p in one kernel, which sorts nothing: a program has a row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.sample_search import (
    find,
    keys_of,
    largest_of,
    take_best,
    value_of,
    weights_of,
)

BLOCK = 8192
"""Tokens that a program looks at together."""


@triton.jit
def _scale(
    x, largest, temperature_ptr, min_p_ptr, HAS_MIN_P: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    # After the shift the best token is 0, so the smallest temperature cannot overflow.
    x = tl.div_rn(x - largest, tl.zeros([SIZE], tl.float32) + tl.load(temperature_ptr))
    if HAS_MIN_P:
        least = tl.log(tl.load(min_p_ptr).to(tl.float64)).to(tl.float32)
        x = tl.where(x < least, float("-inf"), x)
    return x


@triton.jit
def _enough(weight, top_p):
    """The weight that the better tokens must not have reached for a token to stay."""
    return tl.ceil(weight.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64)


@triton.jit
def _whole_kernel(
    logits_ptr,
    packed_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    row_stride,
    temperature_stride,
    min_p_stride,
    top_k_stride,
    top_p_stride,
    vocab_size,
    HAS_MIN_P: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    packed_ptr += row * vocab_size
    temperature_ptr += row * temperature_stride
    min_p_ptr += row * min_p_stride
    largest = largest_of(logits_ptr, vocab_size, BLOCK)
    weight = row * 0
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_column = columns < vocab_size
        x = tl.load(logits_ptr + columns, mask=is_column, other=float("-inf"))
        x = _scale(x, largest, temperature_ptr, min_p_ptr, HAS_MIN_P, BLOCK)
        tl.store(logits_ptr + columns, x, mask=is_column)
        if HAS_TOP_P:
            weight += tl.sum(tl.where(is_column, weights_of(x), 0), 0)
    if HAS_TOP_K or HAS_TOP_P:
        tl.debug_barrier()
        # Tokens stay that have a key below `last`, and of those that have it the first few.
        last = row * 0 + 0xFFFFFFFF
        num_ties = last
        if HAS_TOP_K:
            k = tl.load(top_k_ptr + row * top_k_stride)
            if (k > 0) & (k < vocab_size):
                last, before = find(logits_ptr, packed_ptr, vocab_size, k, False, BLOCK)
                num_ties = k - before
                if HAS_TOP_P:
                    weight = num_ties * weights_of(value_of(last))
                    for start in range(0, vocab_size, BLOCK):
                        columns = start + tl.arange(0, BLOCK)
                        x = tl.load(
                            logits_ptr + columns, mask=columns < vocab_size, other=float("-inf")
                        )
                        weight += tl.sum(tl.where(keys_of(x) < last, weights_of(x), 0), 0)
        if HAS_TOP_P:
            top_p = tl.load(top_p_ptr + row * top_p_stride)
            if (top_p < 1.0) & (weight > 0):
                enough = _enough(weight, top_p)
                last, before = find(logits_ptr, packed_ptr, vocab_size, enough, True, BLOCK)
                of_each = weights_of(value_of(last))
                num_ties = (enough - before + of_each - 1) // of_each
        num_seen = row * 0
        for start in range(0, vocab_size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_column = columns < vocab_size
            x = tl.load(logits_ptr + columns, mask=is_column, other=float("-inf"))
            keys = keys_of(x)
            is_tie = (is_column & (keys == last)).to(tl.int32)
            number = num_seen + tl.cumsum(is_tie, 0)
            is_dropped = (keys > last) | ((is_tie > 0) & (number > num_ties))
            tl.store(logits_ptr + columns, float("-inf"), mask=is_column & is_dropped)
            num_seen += tl.sum(is_tie, 0)


@triton.jit
def _candidates_kernel(
    logits_ptr,
    packed_ptr,
    values_ptr,
    ids_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    row_stride,
    temperature_stride,
    min_p_stride,
    top_k_stride,
    top_p_stride,
    vocab_size,
    num_candidates,
    HAS_MIN_P: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    packed_ptr += row * vocab_size
    values_ptr += row * num_candidates
    ids_ptr += row * num_candidates
    largest = largest_of(logits_ptr, vocab_size, BLOCK)
    take_best(
        logits_ptr, packed_ptr, values_ptr, ids_ptr, vocab_size, num_candidates, CANDIDATES, BLOCK
    )
    places = tl.arange(0, CANDIDATES)
    is_place = places < num_candidates
    x = tl.load(values_ptr + places, mask=is_place, other=float("-inf"))
    x = _scale(
        x, largest, temperature_ptr + row * temperature_stride, min_p_ptr + row * min_p_stride,
        HAS_MIN_P, CANDIDATES,
    )  # fmt: skip
    if HAS_TOP_K:
        k = tl.load(top_k_ptr + row * top_k_stride)
        x = tl.where((k > 0) & (places >= k), float("-inf"), x)
    if HAS_TOP_P:
        top_p = tl.load(top_p_ptr + row * top_p_stride)
        weights = tl.where(is_place, weights_of(x), 0)
        before = tl.cumsum(weights, 0) - weights
        total = tl.sum(weights, 0)
        enough = tl.where(top_p < 1.0, _enough(total, top_p), total + 1)
        x = tl.where(before >= enough, float("-inf"), x)
    tl.store(values_ptr + places, x, mask=is_place)


def stages(
    logits: Tensor,
    temperature: Tensor,
    min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    max_top_k: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.sample.stages`."""
    num_rows, vocab_size = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    params = [temperature if x is None else x for x in (temperature, min_p, top_k, top_p)]
    strides = [x.stride(0) for x in params]
    switches: dict[str, Any] = {
        "HAS_MIN_P": min_p is not None,
        "HAS_TOP_K": top_k is not None,
        "HAS_TOP_P": top_p is not None,
        "BLOCK": min(BLOCK, max(16, triton.next_power_of_2(vocab_size))),
        "num_warps": 16 if vocab_size > BLOCK // 2 else 4,
    }
    packed = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if max_top_k is None:
        if num_rows:
            _whole_kernel[(num_rows,)](
                logits, packed, *params, logits.stride(0), *strides, vocab_size, **switches
            )
        return logits, None
    num_candidates = min(max_top_k, vocab_size)
    shape = (num_rows, num_candidates)
    values = torch.empty(shape, dtype=torch.float32, device=logits.device)
    token_ids = torch.empty(shape, dtype=torch.int64, device=logits.device)
    if num_rows:
        _candidates_kernel[(num_rows,)](
            logits,
            packed,
            values,
            token_ids,
            *params,
            logits.stride(0),
            *strides,
            vocab_size,
            num_candidates,
            CANDIDATES=max(16, triton.next_power_of_2(num_candidates)),
            **switches,
        )
    return values, token_ids
