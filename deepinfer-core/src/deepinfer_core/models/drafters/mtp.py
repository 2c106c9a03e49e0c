"""Drafters that predict one further token per step, and chain.

Multi-token prediction, DeepSeek-AI 2024, arXiv:2412.19437, section 2.2. At position t the layer
reads the target's features there and the embedding of the token at t + 1, and its logits are of
the token at t + 2. Later drafts read the layer's own output as features.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from deepinfer_core.errors import ConfigError
from deepinfer_core.models.drafters.interface import (
    Drafter,
    Drafts,
    DraftTarget,
    Draw,
    most_likely,
)
from deepinfer_core.models.drafters.rows import following, rows_of
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch


class Mtp(Drafter):
    """One layer with a cache of one row per token, in which drafts are written as they come."""

    @abstractmethod
    def advance(self, features: Tensor, embeddings: Tensor, attention: AttentionBatch) -> Tensor:
        """Compute the layer, and write its caches, at the positions of a batch.

        Args:
            features: [T, ...] of the target, or what this gave for the position before.
            embeddings: [T, C] of the tokens that follow.

        Returns:
            [T, ...] like `features`.
        """

    @abstractmethod
    def head_input(self, features: Tensor) -> Tensor:
        """What `advance` gave -> [T, C] for the target's output head."""

    @torch.inference_mode()
    def observe(
        self, target: DraftTarget, batch: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> Tensor:
        return self.advance(features, target.embed_ids(next_ids), batch.attention)

    @torch.inference_mode()
    def draft(
        self,
        target: DraftTarget,
        batch: ForwardBatch,
        observed: Tensor,
        rows: Tensor,
        num_tokens: int,
        draw: Draw = most_likely,
    ) -> Drafts:
        if num_tokens < 1:
            raise ConfigError("a draft has at least one token", value=num_tokens)
        features = observed.index_select(0, rows)
        attention = rows_of(batch.attention, rows)
        token_ids: list[Tensor] = []
        logits: list[Tensor] = []
        for index in range(num_tokens):
            if index:
                attention = following(attention)
                features = self.advance(features, target.embed_ids(token_ids[-1]), attention)
            logits.append(target.compute_logits(self.head_input(features)))
            token_ids.append(draw(logits[-1], index))
        return Drafts(torch.stack(token_ids, dim=1), torch.stack(logits, dim=1), None)
