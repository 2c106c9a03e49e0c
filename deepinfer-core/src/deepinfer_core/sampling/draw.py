"""argmax(logits + Gumbel noise) over a whole vocabulary, computing little of the noise.

Noise is at most `MAX_GUMBEL`, so a group of tokens whose best logit is too low cannot win whatever
its noise; among the others, most are ruled out by their largest random word before any logarithm.
Rounding is monotone, so the bounds hold for the rounded float32 scores and the result is exactly
that of the full computation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.sampling.rng import (
    LANES,
    MAX_GUMBEL,
    PURPOSE_DRAW,
    gumbel,
    random_words,
    token_noise,
)
from deepinfer_core.sampling.selection import GROUP, first_max, group_logits

_QUADS = GROUP // LANES
_PROBED_GROUPS = 4
"""Groups per row that are computed first, for a score to beat."""
_TILE_GROUPS = 1024
"""Groups per pass; the random words of a tile (128 KiB each) stay in the cache."""


def draw_dense(logits: Tensor, seeds: Tensor, sample_indices: Tensor, positions: Tensor) -> Tensor:
    """Draw one token per row.

    Args:
        logits: [n, V] float32.
        seeds, sample_indices, positions: [n] int64.

    Returns:
        [n] int32. Ties go to the lower id.
    """
    keys = (seeds, sample_indices, positions)
    if logits.device.type == "cpu":
        # Shapes that depend on data cost a wait anywhere else.
        return _draw_pruned(logits, keys).to(torch.int32)
    return draw_unpruned(logits, seeds, sample_indices, positions)


def draw_unpruned(
    logits: Tensor, seeds: Tensor, sample_indices: Tensor, positions: Tensor
) -> Tensor:
    """The same by its definition, with shapes that don't depend on data."""
    n, vocab_size = logits.shape
    quads = torch.arange(-(-vocab_size // LANES), device=logits.device)
    words = random_words(
        seeds[:, None], sample_indices[:, None], positions[:, None], quads, purpose=PURPOSE_DRAW
    )
    noise = gumbel(torch.stack(words, dim=-1).view(n, -1)[:, :vocab_size])
    return first_max(logits + noise).to(torch.int32)


def _draw_pruned(logits: Tensor, keys: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    n, vocab_size = logits.shape
    groups = group_logits(logits)
    maxima = groups.amax(dim=-1)
    to_beat = _probe(groups, maxima, keys)
    pairs = (maxima + MAX_GUMBEL >= to_beat[:, None]).nonzero()
    found = [
        _tile_winners(groups, maxima, to_beat, tile, keys)
        for tile in torch.split(pairs, _TILE_GROUPS)
    ]
    rows, scores, token_ids = (torch.cat(parts) for parts in zip(*found, strict=True))
    best = scores.new_full((n,), float("-inf")).scatter_reduce_(0, rows, scores, "amax")
    last = torch.full_like(token_ids, vocab_size - 1)
    token_ids = torch.where(scores == best[rows], token_ids, last)
    result = token_ids.new_full((n,), vocab_size - 1)
    return result.scatter_reduce_(0, rows, token_ids, "amin")


def _probe(groups: Tensor, maxima: Tensor, keys: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """[n] best score among the few groups with the largest logits."""
    n, num_groups, _ = groups.shape
    probed = maxima.topk(min(_PROBED_GROUPS, num_groups), dim=-1).indices
    inside = torch.arange(GROUP, device=groups.device)
    ids = (probed[:, :, None] * GROUP + inside).view(n, -1)
    scores = groups.view(n, -1).gather(1, ids) + token_noise(*keys, ids)
    return scores.amax(dim=-1)


def _tile_winners(
    groups: Tensor,
    maxima: Tensor,
    to_beat: Tensor,
    pairs: Tensor,
    keys: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Row, best score and its lowest token id of each (row, group) pair that may win."""
    rows, group_ids = pairs[:, 0], pairs[:, 1]
    inside = torch.arange(_QUADS, device=groups.device)
    quads = (group_ids[:, None] * _QUADS + inside).view(-1)
    seed, sample, position = (key[rows][:, None].expand(-1, _QUADS).reshape(-1) for key in keys)
    lanes = random_words(seed, sample, position, quads, purpose=PURPOSE_DRAW)
    largest = torch.maximum(torch.maximum(lanes[0], lanes[1]), torch.maximum(lanes[2], lanes[3]))
    ceiling = maxima[rows, group_ids] + gumbel(largest.view(-1, _QUADS).amax(dim=-1))
    kept = (ceiling >= to_beat[rows]).nonzero()[:, 0]
    words = torch.stack([lane.view(-1, _QUADS)[kept] for lane in lanes], dim=-1)
    rows, group_ids = rows[kept], group_ids[kept]
    scores = groups[rows, group_ids] + gumbel(words.view(-1, GROUP))
    best, inside_best = scores.max(dim=-1)
    return rows, best, group_ids * GROUP + inside_best
