"""A small model of its own as a drafter: it reads the same tokens as the target.

Leviathan et al. 2023, arXiv:2211.17192. Its caches stand in the target's pool under the target's
block tables, so prefix hits, forks, preemption and rejected tokens need nothing of their own: what
was computed of a rejected token is written again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.errors import ConfigError
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.drafters.interface import (
    Drafter,
    Drafts,
    DraftTarget,
    Draw,
    most_likely,
)
from deepinfer_core.models.drafters.rows import following, rows_of
from deepinfer_core.models.interface import history_len_of
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch


class DraftModel(Drafter):
    """Drafts token by token.

    Args:
        model: with its weights in place, or still on the meta device.
        vocab_size: the target's; no draft is beyond it.
        first_cache: how many caches the target has.

    Raises:
        ConfigError: the model cannot run on the tokens of a step alone.
    """

    reads_features = False

    def __init__(self, model: CausalModel, *, vocab_size: int, first_cache: int) -> None:
        if history_len_of(model):
            raise ConfigError(
                "a model that reads tokens before its chunk cannot draft",
                field="speculative.draft_model",
                value=type(model).__name__,
            )
        super().__init__(list(model.layer_kv()), num_drafts=1)
        self.model = model
        self.vocab_size = vocab_size
        self.first_cache = first_cache

    def stored_name(self, name: str) -> str:
        stored = getattr(self.model, "stored_name", str)
        return str(stored(name.removeprefix("model.")))

    @torch.inference_mode()
    def observe(
        self, target: DraftTarget, batch: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> Tensor:
        self.model.forward(
            ForwardBatch(self._known(batch.input_ids), batch.positions, self._own(batch.attention))
        )
        return next_ids

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
        attention = rows_of(self._own(batch.attention), rows)
        token_ids, logits = [observed.index_select(0, rows)], []
        for index in range(num_tokens):
            attention = following(attention)
            positions = attention.groups[0].positions
            step = ForwardBatch(self._known(token_ids[-1]), positions, attention)
            logits.append(self.model.compute_logits(self.model.forward(step)))
            logits[-1] = logits[-1][:, : self.vocab_size]
            token_ids.append(draw(logits[-1], index))
        return Drafts(torch.stack(token_ids[1:], dim=1), torch.stack(logits, dim=1), None)

    def _known(self, token_ids: Tensor) -> Tensor:
        """Ids that it has; those that only the target has become any of them."""
        if self.model.vocab_size >= self.vocab_size:
            return token_ids
        return token_ids.clamp(max=self.model.vocab_size - 1)

    def _own(self, attention: AttentionBatch) -> AttentionBatch:
        """The batch with its caches as the model numbers them."""
        first = self.first_cache
        return replace(
            attention,
            cache_groups=attention.cache_groups[first:],
            caches=attention.caches[first:],
            handed_on={},
        )
