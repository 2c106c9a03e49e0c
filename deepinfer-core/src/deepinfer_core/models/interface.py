"""What the runner needs of a model. A model sees a `ForwardBatch` and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.vision.tower import VisionTower
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


@runtime_checkable
class ReadsHistory(Protocol):
    """What a model has besides that wants `ForwardBatch.history`."""

    history_len: int
    """Tokens before the first of a chunk that its computation depends on by their ids."""


def history_len_of(model: object) -> int:
    """How many tokens before a chunk a model wants to know."""
    return model.history_len if isinstance(model, ReadsHistory) else 0


class Vocabulary(Protocol):
    """What a model may want to know of a tokenizer."""

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...


@runtime_checkable
class ReadsVocabulary(Protocol):
    """What a model has besides that computes with the text of tokens."""

    def read_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learn the text of all tokens; once, before the first forward.

        Raises:
            ModelLoadError: it is not the vocabulary of this model.
        """
        ...


@runtime_checkable
class SeesImages(Protocol):
    """What a model that takes images has besides; it obeys `ForwardBatch.images`."""

    vision: VisionTower | None
    """None: this checkpoint came without one."""


def tower_of(model: Model) -> VisionTower | None:
    """The vision tower of a model; None if it takes no images."""
    return model.vision if isinstance(model, SeesImages) else None
