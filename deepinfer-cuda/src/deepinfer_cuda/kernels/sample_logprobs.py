"""Log-probabilities of chosen and of the most likely tokens: a program has a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.sample_search import LARGEST, keys_of, largest_of, take_best
from deepinfer_cuda.kernels.sample_stages import BLOCK


@triton.jit
def _normalize(x, normalizer):
    logprob = (tl.minimum(x, LARGEST).to(tl.float64) - normalizer).to(tl.float32)
    return tl.where(x == float("-inf"), float("-inf"), logprob)


@triton.jit(do_not_specialize=["num_best"])  # 1 would be a constant, which `take_best` is not for
def _logprobs_kernel(
    logits_ptr,
    packed_ptr,
    chosen_ids_ptr,
    chosen_ptr,
    ranks_ptr,
    ids_ptr,
    values_ptr,
    row_stride,
    vocab_size,
    num_best,
    BEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    largest = largest_of(logits_ptr, vocab_size, BLOCK)
    wanted = tl.load(chosen_ids_ptr + row).to(tl.int64)
    chosen = tl.load(logits_ptr + wanted)
    key = keys_of(chosen)
    total, rank = largest.to(tl.float64) * 0.0, 1
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_column = columns < vocab_size
        x = tl.load(logits_ptr + columns, mask=is_column, other=float("-inf"))
        total += tl.sum(tl.exp(tl.minimum(x, LARGEST) - largest), 0).to(tl.float64)
        keys = keys_of(x)
        is_better = is_column & ((keys < key) | ((keys == key) & (columns < wanted)))
        rank += tl.sum(is_better.to(tl.int32), 0)
    normalizer = largest.to(tl.float64) + tl.log(total)
    tl.store(chosen_ptr + row, _normalize(chosen, normalizer))
    tl.store(ranks_ptr + row, rank)
    if BEST > 0:
        values_ptr += row * num_best
        packed_ptr += row * vocab_size
        ids_ptr += row * num_best
        take_best(logits_ptr, packed_ptr, values_ptr, ids_ptr, vocab_size, num_best, BEST, BLOCK)
        places = tl.arange(0, BEST)
        is_place = places < num_best
        x = tl.load(values_ptr + places, mask=is_place, other=float("-inf"))
        tl.store(values_ptr + places, _normalize(x, normalizer), mask=is_place)


def logprobs(
    logits: Tensor, token_ids: Tensor, num_logprobs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.sample.logprobs`."""
    num_rows, vocab_size = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    num_best = min(num_logprobs, vocab_size)
    device = logits.device
    chosen = torch.empty(num_rows, dtype=torch.float32, device=device)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=device)
    ids = torch.empty((num_rows, num_best), dtype=torch.int32, device=device)
    values = torch.empty((num_rows, num_best), dtype=torch.float32, device=device)
    packed = torch.empty_like(logits, memory_format=torch.contiguous_format) if num_best else values
    if num_rows:
        _logprobs_kernel[(num_rows,)](
            logits,
            packed,
            token_ids.contiguous(),
            chosen,
            ranks,
            ids,
            values,
            logits.stride(0),
            vocab_size,
            num_best,
            BEST=max(16, triton.next_power_of_2(num_best)) if num_best else 0,
            BLOCK=min(BLOCK, max(16, triton.next_power_of_2(vocab_size))),
            num_warps=16 if vocab_size > BLOCK // 2 else 4,
        )
    return chosen, ranks, ids, values
