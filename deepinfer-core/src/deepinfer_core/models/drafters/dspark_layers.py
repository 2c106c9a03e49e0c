"""The parts of DSpark: attention of a block, what reads features, what links and judges drafts.

DeepSeek-AI 2026, arXiv:2607.05147.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.drafters.dspark_config import DsparkConfig
from deepinfer_core.models.drafters.interface import Drafts, DraftTarget, Draw
from deepinfer_core.models.layers.embedding import VocabMatrix
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.ops.rows import window_rows
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class BlockAttention(WindowAttention):
    """Attention of N blocks to the context rows before them, and of their rows to each other.

    `write` caches context rows; what a block writes is never cached.
    """

    def forward(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """[N * block_size, C] -> the same.

        Args:
            positions: of the rows of the blocks.
            attention: of N single tokens, each the last before its block. All rows of a block see
                the window that ends there.
        """
        q_latent, row = self.project_down(x, positions, cos_sin)
        q = self.queries(q_latent, positions, cos_sin)
        meta, context = self.window.of(attention)
        seen = window_rows(meta, self.config.window_size)
        block_size = len(x) // len(seen)
        own = torch.arange(len(x), dtype=torch.int32, device=x.device).view(len(seen), block_size)
        o = self.attend_to(
            q,
            context,
            seen.repeat_interleave(block_size, dim=0),
            extra_cache=self.window.pack(row).unsqueeze(0),
            extra_rows=own.repeat_interleave(block_size, dim=0),
            **self.window.options("extra_record"),
        )
        return self.project_back(o, positions, cos_sin)


class ContextInput(nn.Module):
    """What a stage reads of a committed token: the target's features, projected and normalised."""

    def __init__(self, ops: OpTable, config: V4Config, dspark: DsparkConfig, *, dtype: str) -> None:
        super().__init__()
        size, width = config.hidden_size, len(dspark.target_layers) * config.hidden_size
        self.main_proj = Linear(ops, width, size, dtype=dtype, role="draft.input")
        self.main_norm = RMSNorm(ops, size, config.norm_eps, dtype=dtype, role="draft.input_norm")

    def forward(self, features: Tensor) -> Tensor:
        """[T, k, D] -> [T, D]."""
        x: Tensor = self.main_norm(self.main_proj(features.flatten(1)))
        return x


class MarkovHead(nn.Module):
    """What the token before a draft adds to its logits: a bigram table of low rank."""

    def __init__(self, ops: OpTable, vocab_size: int, rank: int, *, dtype: str) -> None:
        super().__init__()
        self.embed = VocabMatrix(ops, vocab_size, rank, dtype=dtype, role="draft.markov")
        self.head = Linear(ops, rank, vocab_size, dtype=dtype, role="draft.markov")


class ConfidenceHead(nn.Module):
    """How likely a draft is to be accepted, from its hidden state and the token before it."""

    def __init__(self, ops: OpTable, width: int) -> None:
        super().__init__()
        self.proj = Linear(ops, width, 1, dtype="float32", role="draft.confidence")

    def forward(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """[N, D] before the last norm and [N, rank] -> [N] float32."""
        pair = torch.cat((hidden_states, embeddings), dim=1).float()
        confidence: Tensor = self.proj(pair).squeeze(1).sigmoid()
        return confidence


class DraftHead(nn.Module):
    """What the last stage has behind it."""

    def __init__(self, ops: OpTable, config: V4Config, dspark: DsparkConfig, *, dtype: str) -> None:
        super().__init__()
        size, rank = config.hidden_size, dspark.markov_rank
        self.norm = RMSNorm(ops, size, config.norm_eps, dtype=dtype, role="draft.norm")
        self.markov_head = MarkovHead(ops, config.vocab_size, rank, dtype=dtype)
        self.confidence_head = ConfidenceHead(ops, size + rank)

    def link(
        self, target: DraftTarget, hidden_states: Tensor, anchor_ids: Tensor, draw: Draw
    ) -> Drafts:
        """Draw tokens one after the other, each seeing the one before it.

        Args:
            hidden_states: [N, k, D] of the first k rows of each block.
            anchor_ids: [N] int32, the tokens before the first drafts.
        """
        base = target.compute_logits(self.norm(hidden_states.flatten(0, 1)))
        base = base.view(*hidden_states.shape[:2], -1)
        token_ids, logits, confidence = [anchor_ids], [], []
        for index in range(hidden_states.shape[1]):
            embeddings = self.markov_head.embed(token_ids[-1])
            confidence.append(self.confidence_head(hidden_states[:, index], embeddings))
            logits.append(base[:, index] + self.markov_head.head(embeddings).float())
            token_ids.append(draw(logits[-1], index))
        parts = (token_ids[1:], logits, confidence)
        return Drafts(*(torch.stack(part, dim=1) for part in parts))
