"""Log-probabilities of prompt tokens, a bounded piece of prompt and vocabulary at a time.

Every piece has the same number of rows, filled up with zeros, so that with batch-invariant ops a
token's bits depend neither on the chunks of the prompt nor on how much of it was cached.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer_core.sampling.result import LogprobTensors

ROWS_PER_CHUNK = 32
"""Prompt positions per piece: 17 MB of logits with 129,280 tokens."""
VOCAB_CHUNK = 16384
"""Tokens per call of the output projection."""

PromptLogprobs = LogprobTensors


def prompt_logprobs(
    hidden: Tensor,
    lm_head_chunk: Callable[[Tensor, int, int], Tensor],
    vocab_size: int,
    target_ids: Tensor,
    num_logprobs: int,
    *,
    logprobs_op: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor, Tensor]],
    rows_per_chunk: int = ROWS_PER_CHUNK,
    vocab_chunk: int = VOCAB_CHUNK,
) -> PromptLogprobs:
    """Log-probabilities that a model gives to the tokens that follow.

    The rank of a token needs its logit before the others are counted, so the logits of one piece
    of rows are kept whole: `rows_per_chunk * vocab_size` floats, whatever the prompt's length.

    Args:
        hidden: [T, C] last hidden states.
        lm_head_chunk: maps hidden [R, C], start and stop to logits [R, stop - start] float32.
        target_ids: [T] the token after each position.
        num_logprobs: how many of the most likely tokens; 0 for none.
        logprobs_op: the op `sample.logprobs`.

    Returns:
        Device tensors of T rows. Never waits.
    """
    num_tokens = hidden.shape[0]
    logits = torch.empty(rows_per_chunk, vocab_size, dtype=torch.float32, device=hidden.device)
    parts = []
    for start in range(0, num_tokens, rows_per_chunk):
        rows = _fill_up(hidden[start : start + rows_per_chunk], rows_per_chunk)
        targets = _fill_up(target_ids[start : start + rows_per_chunk], rows_per_chunk)
        for low in range(0, vocab_size, vocab_chunk):
            high = min(low + vocab_chunk, vocab_size)
            logits[:, low:high] = lm_head_chunk(rows, low, high)
        parts.append(logprobs_op(logits, targets, num_logprobs))
    if not parts:
        parts.append(logprobs_op(logits[:0], target_ids, num_logprobs))
    return PromptLogprobs(*(torch.cat(part)[:num_tokens] for part in zip(*parts, strict=True)))


def _fill_up(values: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - values.shape[0]
    if missing == 0:
        return values
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
