"""DSpark: drafts a block of tokens at once, from features of several layers of the target.

DeepSeek-AI 2026, arXiv:2607.05147. Features of committed tokens become context rows in a window
cache of each stage. A block, the token just drawn and noise, attends to these rows and to itself;
what it writes is scratch. A first-order Markov head then links the drafts to each other, and a
confidence head says how far they may be trusted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.drafters.dspark_config import DsparkConfig
from deepinfer_core.models.drafters.dspark_layers import BlockAttention, ContextInput, DraftHead
from deepinfer_core.models.drafters.interface import (
    Drafter,
    Drafts,
    DraftTarget,
    Draw,
    longest_position,
    most_likely,
)
from deepinfer_core.models.drafters.rows import rows_of
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch


class Dspark(Drafter):
    """Stages of window layers over the target's features; the forms of V4 and V4.1 differ in them.

    Its parameters are in `context`, `stages` and `head`, see `stored_prefix`.
    """

    context: ContextInput
    head: DraftHead

    def __init__(self, dspark: DsparkConfig, rows: LayerKV, rotary: RotaryTable) -> None:
        super().__init__([rows] * dspark.num_stages, num_drafts=dspark.block_size)
        self.dspark, self.rotary = dspark, rotary

    @property
    @abstractmethod
    def attentions(self) -> Iterable[BlockAttention]:
        """Of the stages, in order."""

    @abstractmethod
    def run_stages(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """Embeddings of blocks [N * block_size, D] -> [N * block_size, D] before the last norm."""

    def stored_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        last = self.dspark.num_stages - 1
        return {"stages": "mtp.", "context": "mtp.0.", "head": f"mtp.{last}."}[part] + rest

    def is_redundant(self, name: str) -> bool:
        return not name.startswith("mtp.")

    @torch.inference_mode()
    def observe(
        self, target: DraftTarget, batch: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> Tensor:
        x = self.context(features)
        cos_sin = self.rotary.cos_sin(longest_position(batch.attention), x.device)
        for attention in self.attentions:
            attention.store_context(x, batch.positions, cos_sin, batch.attention)
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
        size = self.dspark.block_size
        if not 1 <= num_tokens <= size:
            raise ConfigError(
                f"DSpark drafts a block at once: {num_tokens} tokens, dspark_block_size is {size}",
                value=num_tokens,
                allowed=f"1 to {size}",
            )
        attention = rows_of(batch.attention, rows)
        anchor_ids = observed.index_select(0, rows)
        block_ids = anchor_ids.new_full((len(rows), size), self.dspark.noise_token_id)
        block_ids[:, 0] = anchor_ids
        ahead = torch.arange(1, size + 1, device=rows.device)
        positions = (attention.groups[0].positions.unsqueeze(1) + ahead).flatten()
        cos_sin = self.rotary.cos_sin(longest_position(attention) + size, rows.device)
        x = target.embed_ids(block_ids.flatten())
        hidden_states = self.run_stages(x, positions, cos_sin, attention)
        hidden_states = hidden_states.view(len(rows), size, x.shape[1])[:, :num_tokens]
        return self.head.link(target, hidden_states, anchor_ids, draw)
