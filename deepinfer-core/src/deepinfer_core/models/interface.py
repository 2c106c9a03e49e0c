"""What the runner needs of a model. A model sees a `ForwardBatch` and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.runtime.batch import ForwardBatch


class Model(Protocol):
    """A decoder whose weights are in place. T packed tokens, C hidden, V vocabulary."""

    dtype: torch.dtype
    vocab_size: int

    def layer_kv(self) -> Sequence[LayerKV]:
        """What each cache stores per token; a cache's index here is its index in the batch."""
        ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes keys and values of the T tokens."""
        ...

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[L, C] -> [L, V] float32."""
        ...

    def lm_head_chunk(self, hidden_states: Tensor, start: int, stop: int) -> Tensor:
        """[L, C] -> [L, stop - start] float32: the logits of one stretch of the vocabulary."""
        ...
