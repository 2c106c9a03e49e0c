"""DSpark: drafts a block of tokens at once, from features of several layers of the target.

DeepSeek-AI 2026, arXiv:2607.05147. Features of committed tokens become context rows in a window
cache of each stage. A block, the token just drawn and noise, attends to these rows and to itself;
what it writes is scratch. A first-order Markov head then links the drafts to each other, and a
confidence head says how far they may be trusted.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

from deepinfer_core.errors import ConfigError
from deepinfer_core.models.deepseek_v4_config import V4Config
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
from deepinfer_core.models.stream_model import StreamModel
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class Dspark(Drafter):
    """Stages of window layers over the target's features; the forms of V4 and V4.1 differ in them.

    Args:
        config: of the target, with DSpark.
        first_cache: how many caches the target has.
    """

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str, first_cache: int) -> None:
        dspark = config.dspark
        if dspark is None:
            raise ValueError("a checkpoint without DSpark")
        rows = config.window_kv(dtype)
        super().__init__([rows] * dspark.num_stages, num_drafts=dspark.block_size)
        self.dspark, self.max_drafts = dspark, dspark.block_size
        self.context = ContextInput(ops, config, dspark, dtype=dtype)
        self.stages = nn.ModuleList(
            self.build_stage(ops, config, stage, first_cache + stage, dtype=dtype)
            for stage in range(dspark.num_stages)
        )
        self.head = DraftHead(ops, config, dspark, dtype=dtype)
        self.rotary = RotaryTable(config.rope)

    @staticmethod
    @abstractmethod
    def build_stage(
        ops: OpTable, config: V4Config, stage: int, cache: int, *, dtype: str
    ) -> nn.Module:
        """A layer of the target's form whose `attn` is a `BlockAttention` over a cache."""

    @abstractmethod
    def run_stages(self, x: Tensor, blocks: ForwardBatch, cos_sin: Tensor) -> Tensor:
        """Embeddings of N blocks [N * block_size, D] -> hidden states before the last norm.

        Args:
            blocks: ids and positions of all their rows; its attention is that of `BlockAttention`.
        """

    def stored_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        last = self.dspark.num_stages - 1
        homes = {"stages": "mtp.", "context": "mtp.0.", "head": f"mtp.{last}."}
        home = homes.get(part, f"mtp.{last}.{part}.")
        return StreamModel.stored_name(home + rest)

    def is_redundant(self, name: str) -> bool:
        return not name.startswith("mtp.")

    @torch.inference_mode()
    def observe(
        self, target: DraftTarget, batch: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> Tensor:
        x = self.context(features)
        cos_sin = self.rotary.cos_sin(longest_position(batch.attention), x.device)
        for stage in self.stages:
            attention = cast(BlockAttention, stage.attn)
            attention.write(x, batch.positions, cos_sin, batch.attention)
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
        block_ids = block_ids.flatten()
        ahead = torch.arange(1, size + 1, device=rows.device)
        positions = (attention.groups[0].positions.unsqueeze(1) + ahead).flatten()
        cos_sin = self.rotary.cos_sin(longest_position(attention) + size, rows.device)
        x = target.embed_ids(block_ids)
        blocks = ForwardBatch(block_ids, positions, attention)
        hidden_states = self.run_stages(x, blocks, cos_sin)
        hidden_states = hidden_states.view(len(rows), size, x.shape[1])[:, :num_tokens]
        return self.head.link(target, hidden_states, anchor_ids, draw)
