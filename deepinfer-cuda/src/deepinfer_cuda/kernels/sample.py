"""Sampling in Triton: masks, penalties, and the draw. A program has a piece of one row.

The noise is the reference's, bit for bit: integers and logarithms in float64. Nothing depends on
other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Tokens of a piece."""
LANES = tl.constexpr(4)
"""Tokens that share a random counter."""


@triton.jit
def _gumbel(words):
    # float32 cannot hold the 25 bits of u.
    uniform = ((words >> 8).to(tl.float64) + 0.5) * (1.0 / 16777216.0)
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _best_kernel(
    logits_ptr,
    token_ids_ptr,
    seeds_ptr,
    sample_indices_ptr,
    positions_ptr,
    best_ptr,
    best_ids_ptr,
    row_stride,
    ids_stride,
    seeds_stride,
    samples_stride,
    positions_stride,
    width,
    HAS_IDS: tl.constexpr,
    HAS_NOISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best score of each piece and its lowest token id; scores that are nan count as none."""
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < width
    scores = tl.load(logits_ptr + row * row_stride + columns, mask=is_column, other=float("-inf"))
    ids = columns
    if HAS_IDS:
        ids = tl.load(token_ids_ptr + row * ids_stride + columns, mask=is_column, other=0)
        ids = ids.to(tl.int32)
    if HAS_NOISE:
        seed = tl.load(seeds_ptr + row * seeds_stride)
        position = tl.load(positions_ptr + row * positions_stride).to(tl.uint32)
        sample = tl.load(sample_indices_ptr + row * samples_stride).to(tl.uint32)
        if HAS_IDS:
            quads = (ids // LANES).to(tl.uint32)
        else:
            quads = (piece * (BLOCK // LANES) + tl.arange(0, BLOCK // LANES)).to(tl.uint32)
        none = quads * 0
        w0, w1, w2, w3 = tl.philox(seed, none + position, none + sample, none, quads, 10)
        if HAS_IDS:
            lane = ids % LANES
            words = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
        else:
            # LAYOUT: [quads, 2, 2], word 2 * i + j of a quad at [i, j].
            words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [BLOCK])
        scores += _gumbel(words)
    scores = tl.where(is_column & (scores == scores), scores, float("-inf"))
    best = tl.max(scores, 0)
    best_id = tl.min(tl.where(is_column & (scores == best), ids, 2147483647), 0)
    place = row * tl.num_programs(0) + piece
    tl.store(best_ptr + place, best)
    tl.store(best_ids_ptr + place, best_id)


@triton.jit
def _pick_kernel(best_ptr, best_ids_ptr, out_ptr, num_pieces, PIECES: tl.constexpr):
    """The lowest token id of the best pieces."""
    row = tl.program_id(0).to(tl.int64)
    pieces = tl.arange(0, PIECES)
    is_piece = pieces < num_pieces
    place = row * num_pieces + pieces
    best = tl.load(best_ptr + place, mask=is_piece, other=float("-inf"))
    ids = tl.load(best_ids_ptr + place, mask=is_piece, other=2147483647)
    tl.store(out_ptr + row, tl.min(tl.where(best == tl.max(best, 0), ids, 2147483647), 0))


def draw(
    logits: Tensor,
    token_ids: Tensor | None = None,
    seeds: Tensor | None = None,
    sample_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.sample.draw`."""
    num_rows, width = logits.shape
    out = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if not num_rows:
        return out
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    ids = token_ids
    if ids is not None and ids.stride(1) != 1:
        ids = ids.contiguous()
    noise = (seeds, sample_indices, positions)
    keys = [logits if key is None else key for key in noise]
    num_pieces = triton.cdiv(width, BLOCK)
    best = torch.empty((num_rows, num_pieces), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((num_rows, num_pieces), dtype=torch.int32, device=logits.device)
    _best_kernel[(num_pieces, num_rows)](
        logits,
        logits if ids is None else ids,
        *keys,
        best,
        best_ids,
        logits.stride(0),
        0 if ids is None else ids.stride(0),
        *(key.stride(0) for key in keys),
        width,
        HAS_IDS=ids is not None,
        HAS_NOISE=all(key is not None for key in noise),
        BLOCK=BLOCK if num_pieces > 1 else max(16, triton.next_power_of_2(width)),
        num_warps=8 if num_pieces > 1 else 4,
    )
    pieces = triton.next_power_of_2(num_pieces)
    _pick_kernel[(num_rows,)](best, best_ids, out, num_pieces, PIECES=pieces, num_warps=1)
    return out


@triton.jit
def _mask_kernel(
    logits_ptr,
    bitmask_ptr,
    rows_ptr,
    row_stride,
    bitmask_stride,
    vocab_size,
    HAS_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(1).to(tl.int64)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab_size
    row = tl.load(rows_ptr + number) if HAS_ROWS else number
    words = tl.load(bitmask_ptr + number * bitmask_stride + tokens // 32, mask=is_token, other=0)
    is_forbidden = ((words >> (tokens % 32)) & 1) == 0
    tl.store(logits_ptr + row * row_stride + tokens, float("-inf"), mask=is_token & is_forbidden)


def mask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.sample.mask`."""
    num_rows, vocab_size = bitmask.shape[0], logits.shape[1]
    if num_rows:
        bitmask = bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()
        _mask_kernel[(triton.cdiv(vocab_size, BLOCK), num_rows)](
            logits,
            bitmask,
            logits if rows is None else rows,
            logits.stride(0),
            bitmask.stride(0),
            vocab_size,
            HAS_ROWS=rows is not None,
            BLOCK=BLOCK,
        )
    return logits


@triton.jit
def _penalties_kernel(
    logits_ptr,
    prompt_mask_ptr,
    counts_ptr,
    slots_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    row_stride,
    prompt_stride,
    counts_stride,
    repetition_stride,
    presence_stride,
    frequency_stride,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab_size
    slot = tl.load(slots_ptr + row)
    place = logits_ptr + row * row_stride + tokens
    count = tl.load(counts_ptr + slot * counts_stride + tokens, mask=is_token, other=0)
    in_prompt = tl.load(prompt_mask_ptr + slot * prompt_stride + tokens, mask=is_token, other=0)
    is_seen = (count > 0) | (in_prompt != 0)
    x = tl.load(place, mask=is_seen & is_token, other=0.0)
    factor = tl.zeros([BLOCK], tl.float32) + tl.load(repetition_ptr + row * repetition_stride)
    x = tl.where(x > 0.0, tl.div_rn(x, factor), x * factor)
    x -= tl.load(frequency_ptr + row * frequency_stride) * count.to(tl.float32)
    x -= tl.load(presence_ptr + row * presence_stride) * (count > 0).to(tl.float32)
    tl.store(place, x, mask=is_seen & is_token)


def penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    counts: Tensor,
    slots: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """See `deepinfer_core.ops.specs.sample.penalties`."""
    num_rows, vocab_size = logits.shape
    if num_rows:
        _penalties_kernel[(triton.cdiv(vocab_size, BLOCK), num_rows)](
            logits,
            prompt_mask,
            counts,
            slots,
            repetition,
            presence,
            frequency,
            logits.stride(0),
            prompt_mask.stride(0),
            counts.stride(0),
            *(values.stride(0) for values in (repetition, presence, frequency)),
            vocab_size,
            BLOCK=BLOCK,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return logits
