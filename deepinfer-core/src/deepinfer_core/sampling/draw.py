"""argmax(logits + Gumbel noise) over a whole vocabulary, computing little of the noise.

Tokens 4q .. 4q + 3 share a random counter and are a quad here. Noise is at most `MAX_GUMBEL`, so a
quad whose best logit is too low cannot win whatever its noise: no words are computed for it. Most
of the others are ruled out by the largest of their four words, before the logarithms of each.
Rounding is monotone, so the bounds hold for the rounded float32 scores and the result is exactly
that of the full computation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.sampling.rng import (
    LANES,
    MAX_GUMBEL,
    PURPOSE_DRAW,
    gumbel,
    random_words,
)
from deepinfer_core.sampling.selection import GROUP, first_max, group_logits

_QUADS = GROUP // LANES
_PROBED_GROUPS = 4
"""Groups per row that are computed first, for a score to beat."""
_MIN_PRUNED = 4096
"""Vocabulary from which pruning costs less than it saves."""
_TILE_QUADS = 12288
"""Quads per pass: arrays of 96 KiB stay in the cache, and below the size from which the
allocator asks the system for fresh memory each time."""


def draw_dense(logits: Tensor, seeds: Tensor, sample_indices: Tensor, positions: Tensor) -> Tensor:
    """Draw one token per row.

    Args:
        logits: [n, V] float32.
        seeds, sample_indices, positions: [n] int64.

    Returns:
        [n] int32. Ties go to the lower id; a valid id even where a row is all -inf or NaN.
    """
    # Pruning has shapes that depend on data, which cost a wait anywhere but on the CPU.
    prunes = logits.device.type == "cpu" and logits.shape[1] >= _MIN_PRUNED
    function = draw_pruned if prunes else draw_unpruned
    return function(logits, seeds, sample_indices, positions).to(torch.int32)


def draw_unpruned(
    logits: Tensor, seeds: Tensor, sample_indices: Tensor, positions: Tensor
) -> Tensor:
    """The draw by its definition, [n] int64."""
    vocab_size = logits.shape[1]
    quads = torch.arange(-(-vocab_size // LANES), device=logits.device)
    words = random_words(
        seeds[:, None], sample_indices[:, None], positions[:, None], quads, purpose=PURPOSE_DRAW
    )
    noise = gumbel(torch.stack(words, dim=-1).flatten(1)[:, :vocab_size])
    return first_max(logits + noise)


def draw_pruned(logits: Tensor, seeds: Tensor, sample_indices: Tensor, positions: Tensor) -> Tensor:
    """The same with little noise computed, [n] int64. On the CPU only."""
    n, keys = logits.shape[0], (seeds, sample_indices, positions)
    groups = group_logits(logits)
    num_quads = groups.shape[1] * _QUADS
    quad_logits = groups.view(-1, LANES)
    maxima = quad_logits.amax(dim=-1).view(n, num_quads)
    to_beat = _probe(quad_logits, maxima, keys)
    can_win = maxima + MAX_GUMBEL >= to_beat[:, None]
    all_rows = torch.repeat_interleave(torch.arange(n), can_win.sum(dim=-1))
    all_places = _indices(can_win.view(-1))
    tiles = zip(
        torch.split(all_rows, _TILE_QUADS), torch.split(all_places, _TILE_QUADS), strict=True
    )
    found = []
    for rows, places in tiles:
        words = _quad_words(rows, places - rows * num_quads, keys)
        highest = words[0].maximum(words[1]).maximum(words[2].maximum(words[3]))
        best = maxima.view(-1).index_select(0, places)
        kept = _indices(_may_win(highest, best, to_beat.index_select(0, rows)))
        rows, places = rows.index_select(0, kept), places.index_select(0, kept)
        noise = gumbel(torch.stack([word.index_select(0, kept) for word in words], dim=-1))
        scores = quad_logits.index_select(0, places) + noise
        to_beat.scatter_reduce_(0, rows, scores.amax(dim=-1), "amax")
        found.append((rows, places, scores))
    rows, places, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
    return _winners(rows, (places - rows * num_quads) * LANES, scores, logits.shape)


def _may_win(words: Tensor, logits: Tensor, to_beat: Tensor) -> Tensor:
    """[m] bool: whether logits plus the noise of the words can reach a score; errs to yes.

    -log(-log(u)) >= x means 1 - u <= -log(u) <= exp(-x). The slack covers rounding, of large
    scores too; where infinities leave nothing to compare, the answer is yes.
    """
    slack = to_beat.abs().mul_(2.0**-20).add_(1e-3)
    below_one = (2**32 - 128 - words).to(torch.float32).mul_(2.0**-32)  # at most 1 - u
    return ~(below_one > (logits - to_beat).add_(slack).exp_())


def _winners(rows: Tensor, first_ids: Tensor, scores: Tensor, shape: torch.Size) -> Tensor:
    """[n] lowest id of the best score of each row; m quads with scores [m, LANES]."""
    n, vocab_size = shape
    best_of_quad = scores.amax(dim=-1)
    best = scores.new_full((n,), float("-inf")).scatter_reduce_(0, rows, best_of_quad, "amax")
    winners = _indices(best_of_quad == best[rows])
    token_ids = first_ids[winners] + scores[winners].argmax(dim=-1)
    # Starts at the last id, which stands where NaN leaves no winner.
    result = token_ids.new_full((n,), vocab_size - 1)
    return result.scatter_reduce_(0, rows[winners], token_ids, "amin")


def _probe(quad_logits: Tensor, maxima: Tensor, keys: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """[n] best score among the few groups with the largest logits; maxima [n, quads per row]."""
    n, num_quads = maxima.shape
    group_maxima = maxima.view(n, num_quads // _QUADS, _QUADS).amax(dim=-1)
    probed = group_maxima.topk(min(_PROBED_GROUPS, group_maxima.shape[1]), dim=-1).indices
    quads = (probed[:, :, None] * _QUADS + torch.arange(_QUADS)).flatten()
    rows = torch.repeat_interleave(torch.arange(n), probed.shape[1] * _QUADS)
    noise = gumbel(torch.stack(_quad_words(rows, quads, keys), dim=-1))
    scores = quad_logits.index_select(0, rows * num_quads + quads) + noise
    return scores.view(n, probed.shape[1] * GROUP).amax(dim=-1)


def _quad_words(
    rows: Tensor, quads: Tensor, keys: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random words of m quads, each with the keys of its row; rows are sorted."""
    if rows.numel() and rows[0] == rows[-1]:
        rows = rows[:1]  # one key for all is less to compute with
    seed, sample, position = (key.index_select(0, rows) for key in keys)
    return random_words(seed, sample, position, quads, purpose=PURPOSE_DRAW)


def _indices(mask: Tensor) -> Tensor:
    """[m] int64 places where a [n] mask is set; numpy finds them several times as fast."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))
