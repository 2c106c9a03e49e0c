"""Torch references of the sampling ops. Signatures and contracts: `ops/specs/sample.py`.

INVARIANT: a row's bits don't depend on other rows. Maxima and integer sums are exact in any order,
float sums are trees of elementwise additions, transcendental functions go through `map_elements`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer_core.sampling.draw import draw_dense
from deepinfer_core.sampling.rng import map_elements, token_noise
from deepinfer_core.sampling.selection import first_max, top_candidates
from deepinfer_core.sampling.truncate import truncate_ranked, truncate_whole

_INF = float("inf")
_MAX = torch.finfo(torch.float32).max
_LOGPROB_CHUNK = 8192
"""Tokens per partial sum; fixed, since it shapes the bits of log-probabilities."""


def mask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> Tensor:
    masked = logits if rows is None else logits.index_select(0, rows)
    table, nothing = _forbidden_by_byte(logits.device), logits.new_full((), -_INF)
    # Row by row a CPU stays in its cache; elsewhere launches cost more than memory traffic.
    rows_at_once = 1 if logits.device.type == "cpu" else max(1, len(masked))
    for start in range(0, len(masked), rows_at_once):
        part = masked[start : start + rows_at_once]
        # A byte holds the bits of 8 tokens, the first in its lowest: words are little-endian.
        codes = bitmask[start : start + rows_at_once].contiguous().view(torch.uint8).int()
        forbidden = table[codes].view(torch.bool)[:, : logits.shape[1]]
        torch.where(forbidden, nothing, part, out=part)
    return logits if rows is None else logits.index_copy_(0, rows, masked)


@cache
def _forbidden_by_byte(device: torch.device) -> Tensor:
    """[256] int64 whose 8 bytes say which of 8 tokens a byte of bits forbids."""
    bits = torch.arange(256, dtype=torch.int32)[:, None] >> torch.arange(8)
    return (bits & 1 == 0).view(torch.int64).flatten().to(device)


def penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    counts: Tensor,
    slots: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    # Row by row a CPU stays in its cache; elsewhere launches cost more than memory traffic.
    rows_at_once = 1 if logits.device.type == "cpu" else max(1, logits.shape[0])
    for start in range(0, logits.shape[0], rows_at_once):
        part = slice(start, start + rows_at_once)
        rows = logits[part]
        count = counts.index_select(0, slots[part])
        in_output = count > 0
        seen = in_output | prompt_mask.index_select(0, slots[part])
        factor = repetition[part, None]
        repeated = torch.where(rows > 0, rows / factor, rows * factor)
        rows.copy_(torch.where(seen, repeated, rows))
        rows.sub_(frequency[part, None] * count).sub_(presence[part, None] * in_output)
    return logits


def stages(
    logits: Tensor,
    temperature: Tensor,
    min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    max_top_k: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    if max_top_k is not None:
        values, token_ids = top_candidates(logits, max_top_k)
        values = _drop_unlikely(_scale(values, values[:, :1], temperature), min_p)
        return truncate_ranked(values, top_k, top_p), token_ids
    values = _scale(logits, logits.amax(dim=-1, keepdim=True), temperature)
    values = _drop_unlikely(values, min_p)
    if top_k is None and top_p is None:
        return values, None
    return truncate_whole(values, top_k, top_p), None


def draw(
    logits: Tensor,
    token_ids: Tensor | None = None,
    seeds: Tensor | None = None,
    sample_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    if seeds is None or sample_indices is None or positions is None:
        best = first_max(logits)
        chosen = best if token_ids is None else token_ids.gather(1, best[:, None])[:, 0]
        return chosen.to(torch.int32)
    if token_ids is None:
        return draw_dense(logits, seeds, sample_indices, positions)
    scores = logits + token_noise(seeds, sample_indices, positions, token_ids)
    is_best = scores == scores.amax(dim=-1, keepdim=True)
    highest = token_ids.amax(dim=-1, keepdim=True)  # where NaN leaves no best
    return torch.where(is_best, token_ids, highest).amin(dim=-1).to(torch.int32)


def logprobs(
    logits: Tensor, token_ids: Tensor, num_logprobs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, vocab_size = logits.shape
    wanted = token_ids.to(torch.int64)[:, None]
    chosen = logits.gather(1, wanted)
    largest = logits.amax(dim=-1, keepdim=True).clamp_(-_MAX, _MAX)
    total = torch.zeros(n, dtype=torch.float64, device=logits.device)
    ranks = torch.ones(n, dtype=torch.int64, device=logits.device)
    for start in range(0, vocab_size, _LOGPROB_CHUNK):
        chunk = logits[:, start : start + _LOGPROB_CHUNK]
        total += _sum_exp(chunk, largest)
        ids = torch.arange(start, start + chunk.shape[1], device=logits.device)
        better = (chunk > chosen) | ((chunk == chosen) & (ids < wanted))
        ranks += better.sum(dim=-1)
    normalizer = largest[:, 0].to(torch.float64) + map_elements(torch.log, total)
    chosen_logprobs = _normalize(chosen, normalizer)[:, 0]
    if num_logprobs == 0:
        top, top_ids = chosen[:, :0], wanted[:, :0]
    else:
        top, top_ids = top_candidates(logits, num_logprobs)
    return (
        chosen_logprobs,
        ranks.to(torch.int32),
        top_ids.to(torch.int32),
        _normalize(top, normalizer),
    )


def _scale(logits: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    # After the shift the best token is 0, so the smallest temperature cannot overflow.
    return (logits - largest.clamp(-_MAX, _MAX)).div_(temperature[:, None])


def _drop_unlikely(values: Tensor, min_p: Tensor | None) -> Tensor:
    if min_p is None:
        return values
    return values.masked_fill_(values < map_elements(torch.log, min_p)[:, None], -_INF)


def _sum_exp(chunk: Tensor, largest: Tensor) -> Tensor:
    """[n] float64 sums of exp(chunk - largest) over at most `_LOGPROB_CHUNK` columns."""
    shifted = chunk.clamp(max=_MAX) - largest
    missing = _LOGPROB_CHUNK - chunk.shape[1]
    if missing:
        shifted = torch.nn.functional.pad(shifted, (0, missing), value=-_INF)
    terms = map_elements(torch.exp, shifted)
    width = _LOGPROB_CHUNK
    while width > 1:
        width //= 2
        terms = terms[:, :width] + terms[:, width:]
    return terms[:, 0].to(torch.float64)


def _normalize(values: Tensor, normalizer: Tensor) -> Tensor:
    result = (values.clamp(max=_MAX).to(torch.float64) - normalizer[:, None]).to(torch.float32)
    return result.masked_fill_(values == -_INF, -_INF)
