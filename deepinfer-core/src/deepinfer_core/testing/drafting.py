"""Run a target and its drafter by hand, over one set of caches. See `testing.forward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from deepinfer_core.kv.format import PLAIN
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.drafters.interface import (
    Drafter,
    Drafts,
    DraftTarget,
    Draw,
    most_likely,
)
from deepinfer_core.models.interface import Model
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import OpTable
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint


class Target(Model, DraftTarget, Protocol):
    """A model that gives features."""


def load_with_drafter(
    directory: Path, ops: OpTable, *, dtype: str = "float32", kv_format: str = PLAIN
) -> tuple[Target, Drafter]:
    """A target and the drafter that its checkpoint has, with their weights on the CPU.

    Args:
        directory: with a tokenizer, whose tokens some targets compute with.
    """
    checkpoint = open_checkpoint(directory)
    target = build_model(checkpoint.info, ops, dtype=dtype, kv_format=kv_format)
    assert isinstance(target, DraftTarget)
    first_cache = len(target.layer_kv())
    drafter = build_drafter(target.config, ops, dtype=dtype, first_cache=first_cache)
    assert drafter is not None
    load_weights(target, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    load_weights(drafter, checkpoint, device="cpu")
    return target, drafter


class DraftRunner(HandRunner):
    """Feeds the target, shows the drafter what it was fed, and asks for drafts."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        block_size: int = 16,
        num_blocks: int = 64,
        num_lookahead_tokens: int = 0,
    ) -> None:
        super().__init__(
            target,
            block_size=block_size,
            num_blocks=num_blocks,
            extra_kv=drafter.layer_kv(),
            num_lookahead_tokens=num_lookahead_tokens,
        )
        self.target, self.drafter = target, drafter

    def propose(
        self,
        chunks: Mapping[int, Sequence[int]],
        next_ids: Mapping[int, int],
        num_tokens: int,
        *,
        num_rejected: int = 0,
        draw: Draw = most_likely,
    ) -> tuple[dict[int, Tensor], dict[int, Drafts]]:
        """Compute the next tokens of several sequences and draft behind them, in one step.

        Args:
            chunks: sequence -> its next token ids.
            next_ids: sequence -> the token behind those of its chunk that count.
            num_rejected: so many tokens at the end of each chunk do not count, and are forgotten.

        Returns:
            sequence -> logits [number of its tokens, V] float32; and its drafts, of one row.
        """
        batch = self.next_batch(chunks)
        hidden_states, features = self.target.forward_with_features(batch)
        counts = [len(ids) for ids in chunks.values()]
        following = [
            token
            for (key, ids), count in zip(chunks.items(), counts, strict=True)
            for token in [*ids[1 : count - num_rejected], next_ids[key], *ids[:num_rejected]]
        ]
        shown = torch.tensor(following, dtype=torch.int32)
        observed = self.drafter.observe(self.target, batch, features, shown)
        rows = torch.tensor(counts).cumsum(0) - 1 - num_rejected
        drafts = self.drafter.draft(self.target, batch, observed, rows, num_tokens, draw)
        for key in chunks:
            self.lengths[key] -= num_rejected
        logits = torch.split(self.target.compute_logits(hidden_states), counts)
        return dict(zip(chunks, logits, strict=True)), {
            key: _of_row(drafts, index) for index, key in enumerate(chunks)
        }


def _of_row(drafts: Drafts, index: int) -> Drafts:
    confidence = None if drafts.confidence is None else drafts.confidence[index : index + 1]
    return Drafts(drafts.token_ids[index : index + 1], drafts.logits[index : index + 1], confidence)
