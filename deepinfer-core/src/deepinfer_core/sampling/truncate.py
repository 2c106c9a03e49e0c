"""top_k and top_p: which of the most likely tokens stay.

Probabilities are 40-bit fixed-point weights, so their sums are exact in any order and every way of
computing here gives the same set. Knows nothing of masks, temperature or noise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.sampling.rng import map_elements
from deepinfer_core.sampling.selection import MAX_TOKEN_ID, order_keys

_INF = float("inf")
_WEIGHT_ONE = 2.0**40
"""Weight of a token with logit 0: sums over 2^22 tokens stay within int64."""
_NUM_BUCKETS, _BUCKETS_PER_UNIT = 512, 16
"""The last bucket takes all below -32, where a weight is 0."""
_MIN_SELECTED = 4096
"""Vocabulary from which sorting all of it costs more than selecting first."""


def truncate_ranked(values: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Drop tokens from rows that are in rank order already.

    Args:
        values: [n, m] float32, descending, at most 0; the best tokens of each row, and all of
            them unless top_k drops what is missing.
        top_k: [n] int64, 0 keeps all.
        top_p: [n] float32, 1 keeps all.

    Returns:
        [n, m] with -inf at dropped tokens.
    """
    if top_k is not None:
        rank = torch.arange(values.shape[1], device=values.device)
        limit = top_k[:, None]
        values = values.masked_fill((rank >= limit) & (limit > 0), -_INF)
    if top_p is not None:
        weights = _weights(values)
        before = weights.cumsum(dim=-1) - weights
        enough = _share(weights.sum(dim=-1), top_p)[:, None]
        values = values.masked_fill((before >= enough) & (top_p[:, None] < 1), -_INF)
    return values


def truncate_whole(values: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The same for rows [n, V] in order of token ids; `values` may be modified."""
    # Shapes that depend on data cost a wait anywhere but on the CPU.
    selects = values.device.type == "cpu" and values.shape[1] >= _MIN_SELECTED
    function = truncate_by_selecting if selects else truncate_by_sorting
    return function(values, top_k, top_p)


def truncate_by_selecting(values: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The same, sorting little where top_p stands alone. On the CPU only."""
    for i in range(values.shape[0]):
        row_k = None if top_k is None or top_k[i] == 0 else top_k[i : i + 1]
        row_p = None if top_p is None or top_p[i] == 1 else top_p[i : i + 1]
        if row_k is None and row_p is not None:
            _keep_nucleus(values[i], row_p)
        elif row_k is not None:
            values[i] = truncate_by_sorting(values[i : i + 1], row_k, row_p)[0]
    return values


def truncate_by_sorting(values: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The same by its definition."""
    ranked, order = values.sort(dim=-1, descending=True, stable=True)
    return torch.empty_like(values).scatter_(1, order, truncate_ranked(ranked, top_k, top_p))


def _keep_nucleus(values: Tensor, top_p: Tensor) -> None:
    """top_p of one row [V], in place, sorting only the tokens around the border.

    Tokens are counted into buckets of equal logit width. Those in better buckets than the one in
    which the weight is reached all stay, those in worse ones all go.
    """
    weights = _weights(values)
    enough = _share(weights.sum(dim=-1), top_p)
    scaled = (values * -_BUCKETS_PER_UNIT).clamp_(0, _NUM_BUCKETS - 1)
    scaled.nan_to_num_(nan=_NUM_BUCKETS - 1)
    mass = weights.new_zeros(_NUM_BUCKETS)
    mass.scatter_add_(0, scaled.to(torch.int64), weights)
    reached = mass.cumsum(dim=0)
    border = (reached < enough).sum(dim=0, keepdim=True).clamp_(max=_NUM_BUCKETS - 1)
    before = (reached - mass).index_select(0, border)
    not_better = scaled >= border
    near = (not_better & (scaled < border + 1)).nonzero()[:, 0]
    ranked = _in_rank_order(values.index_select(0, near), near)
    near_weights = weights.index_select(0, ranked)
    before = before + near_weights.cumsum(dim=0) - near_weights
    kept = ranked[before < enough]
    kept_values = values.index_select(0, kept)
    values.masked_fill_(not_better, -_INF).index_copy_(0, kept, kept_values)


def _in_rank_order(values: Tensor, token_ids: Tensor) -> Tensor:
    """Token ids, best first."""
    keys = np.sort(order_keys(values, token_ids).numpy())  # several times as fast as torch's sort
    return MAX_TOKEN_ID - (torch.from_numpy(keys).flip(0) & MAX_TOKEN_ID)


def _share(total: Tensor, top_p: Tensor) -> Tensor:
    """The weight that the better tokens must not have reached for a token to stay."""
    return (total.to(torch.float64) * top_p.to(torch.float64)).ceil().to(torch.int64)


def _weights(values: Tensor) -> Tensor:
    """Fixed-point exp(values) for values <= 0; +inf counts as 0."""
    return map_elements(lambda x: x.clamp(max=0.0).exp_().mul_(_WEIGHT_ONE).to(torch.int64), values)
