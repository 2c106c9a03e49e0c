"""Finding the best tokens of each row: argmax and top-k with ties to the lower id.

Owns the order of tokens (descending logit, then ascending id). Both searches look at the maxima
of groups first, so that most of the vocabulary is read once. Knows nothing of parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64
"""Tokens per group. A multiple of four, so that groups share no random counter."""
MAX_TOKEN_ID = 0xFFFFFFFF
"""Token ids are below it; the low half of an order key is its distance to the id."""
_SIGN_FLIP = 0x7FFFFFFF


def group_logits(logits: Tensor) -> Tensor:
    """View [n, V] as [n, ceil(V / GROUP), GROUP]; the last group is filled with -inf."""
    n, vocab_size = logits.shape
    if vocab_size % GROUP:
        missing = -vocab_size % GROUP
        logits = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits.reshape(n, -(-vocab_size // GROUP), GROUP)


def first_max(logits: Tensor) -> Tensor:
    """Lowest id of the largest logit.

    Args:
        logits: [n, V] float32.

    Returns:
        [n] int64. Some valid id where a row holds NaN.
    """
    n, vocab_size = logits.shape
    groups = group_logits(logits)
    best_group = groups.amax(dim=-1).argmax(dim=-1)
    inside = groups[torch.arange(n, device=logits.device), best_group].argmax(dim=-1)
    return (best_group * GROUP + inside).clamp_(max=vocab_size - 1)


def top_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best tokens of each row, best first, ties to the lower id.

    Args:
        logits: [n, V] float32.
        k: at least 1; cut to V.

    Returns:
        logits [n, k] float32 and token ids [n, k] int64.
    """
    n, vocab_size = logits.shape
    k = min(k, vocab_size)
    if 2 * k * GROUP < vocab_size:
        # A group that holds one of the k best is itself among the k best groups.
        groups = group_logits(logits)
        maxima = groups.amax(dim=-1)
        ids = torch.arange(maxima.shape[1], device=logits.device)
        best = order_keys(maxima, ids).topk(k, dim=-1, sorted=False).indices
        inside = torch.arange(GROUP, device=logits.device)
        ids = (best[:, :, None] * GROUP + inside).flatten(1)
        values = groups.flatten(1).gather(1, ids)
    else:
        ids = torch.arange(vocab_size, device=logits.device).expand(n, -1)
        values = logits
    best = order_keys(values, ids).topk(k, dim=-1, sorted=True).values
    token_ids = (MAX_TOKEN_ID - (best & MAX_TOKEN_ID)).clamp_(max=vocab_size - 1)
    return logits.gather(1, token_ids), token_ids


def order_keys(values: Tensor, ids: Tensor) -> Tensor:
    """int64 keys, all different, that rise with the value and fall with the id."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    ordered = bits ^ ((bits >> 31) & _SIGN_FLIP)
    return (ordered.to(torch.int64) << 32) | (MAX_TOKEN_ID - ids)
