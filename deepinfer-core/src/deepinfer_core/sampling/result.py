"""`SampledTokens`: what a step drew, still on the device, and its way to the host.

Knows nothing of how tokens were drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from deepinfer_core.scheduling.plan import TokenLogprobs

EMPTY_SUPPORT = (
    "no token can be drawn: masks, biases, penalties and stages together leave none, "
    "or the model's logits are not numbers; relax allowed_token_ids, bad_words, logit_bias, "
    "min_tokens or the grammar"
)


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log-probabilities of n tokens and of the k most likely ones at each place."""

    logprobs: Tensor
    """[n] float32"""
    ranks: Tensor
    """[n] int32, 1 is the most likely."""
    top_ids: Tensor
    """[n, k] int32, most likely first."""
    top_logprobs: Tensor
    """[n, k] float32"""

    def to_host(self) -> LogprobTensors:
        """Launch copies to host memory; readable after an event recorded behind them."""
        copies = [
            host_copy(t) for t in (self.logprobs, self.ranks, self.top_ids, self.top_logprobs)
        ]
        return LogprobTensors(*copies)

    def to_list(self, token_ids: Sequence[int], num_logprobs: Sequence[int]) -> list[TokenLogprobs]:
        """Plain values. Tensors must be on the host.

        Args:
            token_ids: [n] the tokens that `logprobs` and `ranks` are of.
            num_logprobs: [n] how many of the most likely to keep.
        """
        columns = zip(
            token_ids,
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_ids.tolist(),
            self.top_logprobs.tolist(),
            num_logprobs,
            strict=True,
        )
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(ids[:k]), tuple(values[:k]))
            for token_id, logprob, rank, ids, values, k in columns
        ]


@dataclass(frozen=True, slots=True)
class LogprobGroup:
    """Log-probabilities of some logits rows of a step."""

    indices: Sequence[int]
    num_logprobs: Sequence[int]
    tensors: LogprobTensors


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each logits row."""

    token_ids: Tensor
    """[L] int32, valid ids even where a row failed."""
    failed: Tensor
    """[L] bool: nothing could be drawn."""
    logprobs: Sequence[LogprobGroup] = ()
    errors: dict[int, str] = field(default_factory=dict)
    """Failures that the host knows of already."""

    def to_host(self) -> SampledTokens:
        """Launch copies to host memory; readable after an event recorded behind them."""
        return SampledTokens(
            token_ids=host_copy(self.token_ids),
            failed=host_copy(self.failed),
            logprobs=[replace(g, tensors=g.tensors.to_host()) for g in self.logprobs],
            errors=self.errors,
        )


@dataclass(frozen=True, slots=True)
class HostTokens:
    """Plain values, parallel to the logits rows."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None
    """None when no row asked for them."""
    errors: dict[int, str]
    """Index -> why that request must end."""


def to_host(sampled: SampledTokens) -> HostTokens:
    """Read tokens that have been copied by `SampledTokens.to_host`, after its event."""
    token_ids: list[int] = sampled.token_ids.tolist()
    errors = dict(sampled.errors)
    failed = sampled.failed.tolist()
    if True in failed:
        for i in itertools.compress(itertools.count(), failed):
            errors.setdefault(i, EMPTY_SUPPORT)
    if not sampled.logprobs:
        return HostTokens(token_ids, None, errors)
    logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
    for group in sampled.logprobs:
        drawn = [token_ids[i] for i in group.indices]
        for i, entry in zip(
            group.indices, group.tensors.to_list(drawn, group.num_logprobs), strict=True
        ):
            logprobs[i] = entry
    return HostTokens(token_ids, logprobs, errors)


def host_copy(tensor: Tensor) -> Tensor:
    """Launch a copy to (page-locked) host memory without waiting for it."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
