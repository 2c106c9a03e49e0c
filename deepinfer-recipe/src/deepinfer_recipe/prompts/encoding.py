"""What the prompt encodings share: special-token overrides, a tokenizer, and `encode`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol, Self

from ..arguments import check_instance
from ..conversation import Conversation
from ..specials import SpecialTokens
from ..tokenizer import Tokenizer
from .pieces import Piece, PromptWriter, RenderedPrompt


class PromptEncoding(Protocol):
    """Renders a conversation for one model version and encodes it."""

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """Return the prompt of a conversation."""

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token ids of a conversation's prompt."""


class BaseEncoding(ABC):
    """A prompt encoding; a subclass writes the prompt of its model version."""

    __slots__ = ("_special_tokens", "_tokenizer")

    def __init__(self) -> None:
        self._special_tokens = SpecialTokens()
        self._tokenizer: Tokenizer | None = None

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return a new encoding that uses `tokenizer` for `encode`."""
        encoding = copy.copy(self)
        encoding._tokenizer = check_instance("tokenizer", tokenizer, Tokenizer)
        return encoding

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Self:
        """Return a new encoding that renders with other spellings."""
        encoding = copy.copy(self)
        encoding._special_tokens = check_instance("special_tokens", special_tokens, SpecialTokens)
        return encoding

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """Return the prompt of a conversation."""
        writer = PromptWriter(self._special_tokens)
        self._write(writer, check_instance("conversation", conversation, Conversation))
        return writer.finish()

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token ids of a conversation's prompt.

        Special tokens that the template wrote become their ids; all other text is encoded
        without the added vocabulary, so that no text of a caller becomes a special token.

        Raises:
            RuntimeError: no tokenizer is attached, or it lacks a special token.
        """
        return self.encode_pieces(self.render_conversation(conversation).pieces)

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """Return the token ids of rendered pieces.

        Raises:
            RuntimeError: no tokenizer is attached, or it lacks a special token.
        """
        if self._tokenizer is None:
            raise RuntimeError("no tokenizer is attached to the encoding")
        return self._tokenizer.encode_pieces(pieces)

    @abstractmethod
    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        """Write the prompt of a conversation."""
