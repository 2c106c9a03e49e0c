"""What a drafter is: a small model beside the target that guesses the tokens which follow.

A drafter reads features of the target and has caches of its own in the same pool, under the same
block tables. It never decides anything: the target verifies every guess. Knows no scheduler.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.layers.packed import Stored
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch

Draw = Callable[[Tensor, int], Tensor]
"""(logits [N, V] float32, which draft from 0) -> token ids [N] int32."""


@runtime_checkable
class DraftTarget(Protocol):
    """What a model that can have a drafter has besides."""

    @property
    def config(self) -> DecoderConfig | V4Config:
        """What its drafter follows from."""
        ...

    def forward_with_features(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Hidden states as `forward` gives them, and what its drafter reads [T, ...]."""
        ...

    def embed_ids(self, token_ids: Tensor) -> Tensor:
        """[N] int32 -> [N, C]."""
        ...

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[N, C] -> [N, V] float32."""
        ...


@dataclass(frozen=True, slots=True)
class Drafts:
    """Guesses for N rows, k of each."""

    token_ids: Tensor
    """[N, k] int32"""
    logits: Tensor
    """[N, k, V] float32, what each token was drawn from."""
    confidence: Tensor | None
    """[N, k] float32 in [0, 1]: how likely the drafter thinks a draft is to be accepted if those
    before it are. None: it does not say."""


def most_likely(logits: Tensor, index: int) -> Tensor:
    """Draw without noise: [N, V] -> [N] int32; ties go to the lower id."""
    return logits.argmax(dim=1).int()


class Drafter(Stored):
    """Constructed on the meta device beside its target; its caches follow the target's.

    A step of the target gives features of T tokens. `observe` takes them in and writes the
    drafter's caches at their positions; `draft` goes on from one row per request. A position may
    be observed again, with other tokens from there on: what is cached behind it no longer counts.
    """

    reads_features: ClassVar[bool] = True
    """Whether it wants more of the target than the tokens."""
    max_drafts: int | None = None
    """Most tokens of one draft; None: any number."""

    def __init__(self, layer_kvs: list[LayerKV], num_drafts: int) -> None:
        super().__init__()
        self._layer_kvs = layer_kvs
        self.num_drafts = num_drafts
        """Tokens per draft that it was trained for."""

    def layer_kv(self) -> list[LayerKV]:
        """What each of its caches stores per token; they are numbered from behind the target's."""
        return self._layer_kvs

    @abstractmethod
    def stored_name(self, name: str) -> str:
        """The released name of a parameter."""

    @abstractmethod
    def observe(
        self, target: DraftTarget, batch: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> Tensor:
        """Take in the tokens of a step; write the drafter's caches.

        Args:
            batch: what the target has just computed. Behind the last committed token of a request
                may stand rejected ones: they spoil nothing, see the class.
            features: [T, ...], the second result of the target's `forward_with_features`.
            next_ids: [T] int32, the token after each: the prompt's, an accepted draft, or behind
                the last committed token the one just drawn. Any valid id where there is none.

        Returns:
            [T, ...], what drafting on from each row needs. Never waits for the device.
        """

    @abstractmethod
    def draft(
        self,
        target: DraftTarget,
        batch: ForwardBatch,
        observed: Tensor,
        rows: Tensor,
        num_tokens: int,
        draw: Draw = most_likely,
    ) -> Drafts:
        """Guess the tokens behind the next token of some rows.

        Args:
            batch: of the step that was observed last; its block tables reach `num_tokens` - 1
                positions further where those are to be written.
            observed: what `observe` gave for it.
            rows: [N] int64, the last committed row of N requests, at least one, none of them twice.
            num_tokens: at least 1.
            draw: what picks a token from its logits.

        Raises:
            ConfigError: so many tokens cannot be drafted at once.

        Never waits for the device.
        """


def longest_position(attention: AttentionBatch) -> int:
    """Upper bound of the lengths of a step's sequences."""
    return max((meta.max_seq_len for meta in attention.groups), default=0)
