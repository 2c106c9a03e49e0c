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
"""Promising groups that are computed before the others, for a score to beat."""
_MIN_PRUNED = 4096
"""Vocabulary from which pruning costs less than it saves."""
_TILE_GROUPS = 1024
"""Groups per pass; the random words of a tile (128 KiB each) stay in the cache."""


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
    n, vocab_size = logits.shape
    keys = (seeds, sample_indices, positions)
    groups = group_logits(logits)
    maxima = groups.amax(dim=-1)
    to_beat = _probe(groups, maxima, keys)
    can_win = maxima + MAX_GUMBEL >= to_beat[:, None]
    token_ids = torch.zeros(n, dtype=torch.int64)
    for i in range(n):
        group_ids = can_win[i].nonzero()[:, 0]
        if group_ids.numel():  # none where a row holds NaN
            row_keys = (seeds[i : i + 1], sample_indices[i : i + 1], positions[i : i + 1])
            token_ids[i] = _draw_row(groups[i], maxima[i], group_ids, to_beat[i], row_keys)
    return token_ids.clamp_(max=vocab_size - 1)


def _draw_row(
    groups: Tensor,
    maxima: Tensor,
    candidates: Tensor,
    to_beat: Tensor,
    keys: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """The winner of one row, a 0-d id; groups [G, GROUP], maxima [G], ids of the candidates."""
    scored = []
    for group_ids in torch.split(candidates, _TILE_GROUPS):
        words = _group_words(group_ids, keys)
        largest = torch.maximum(words[0].maximum(words[1]), words[2].maximum(words[3]))
        ceiling = maxima.index_select(0, group_ids) + gumbel(largest.amax(dim=-1))
        likely = ceiling.topk(min(_PROBED_GROUPS, ceiling.numel())).indices
        to_beat = to_beat.maximum(_scores(groups, group_ids, words, likely)[1].amax())
        kept = (ceiling >= to_beat).nonzero()[:, 0]
        scored.append(_scores(groups, group_ids, words, kept))
    group_ids, scores = (torch.cat(parts) for parts in zip(*scored, strict=True))
    best = scores.view(-1).argmax()
    return group_ids[best // GROUP] * GROUP + best % GROUP


def _scores(
    groups: Tensor, group_ids: Tensor, words: tuple[Tensor, ...], chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """Ids [m] and scores [m, GROUP] of the chosen ones among `group_ids`."""
    group_ids = group_ids.index_select(0, chosen)
    lanes = torch.stack([lane.index_select(0, chosen) for lane in words], dim=-1)
    return group_ids, groups.index_select(0, group_ids) + gumbel(lanes.view(-1, GROUP))


def _group_words(
    group_ids: Tensor, keys: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random words of m groups, [m, GROUP / LANES] for each lane."""
    inside = torch.arange(_QUADS, device=group_ids.device)
    quads = (group_ids[:, None] * _QUADS + inside).view(-1)
    w0, w1, w2, w3 = random_words(*keys, quads, purpose=PURPOSE_DRAW)
    shape = (-1, _QUADS)
    return w0.view(shape), w1.view(shape), w2.view(shape), w3.view(shape)


def _probe(groups: Tensor, maxima: Tensor, keys: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """[n] best score among the few groups with the largest logits."""
    num_groups = groups.shape[1]
    probed = maxima.topk(min(_PROBED_GROUPS, num_groups), dim=-1).indices
    inside = torch.arange(GROUP, device=groups.device)
    ids = (probed[:, :, None] * GROUP + inside).flatten(1)
    scores = groups.flatten(1).gather(1, ids) + token_noise(*keys, ids)
    return scores.amax(dim=-1)
