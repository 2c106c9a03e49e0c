"""A prompt as a list of pieces: plain text, or one special token that the template wrote.

The one place that knows where special tokens are. Ranges and ids both derive from the pieces.
INVARIANT: text of a caller is only ever written with `text`, so that it cannot become a token,
whatever it spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from ..conversation import ImageSource, Message
from ..specials import SpecialToken, SpecialTokens

Piece: TypeAlias = tuple[str, bool]
"""A stretch of the prompt, and whether it is a special token."""
Template: TypeAlias = tuple[str | SpecialToken, ...]

_FIELD = re.compile(r"\{(dsml|thinking_start|thinking_end)\}")
_FIELD_TOKENS = {
    "dsml": SpecialToken.Dsml,
    "thinking_start": SpecialToken.ThinkingStart,
    "thinking_end": SpecialToken.ThinkingEnd,
}


@cache
def compile_template(text: str) -> Template:
    """Split a fixed text at its `{dsml}`, `{thinking_start}` and `{thinking_end}` fields."""
    parts = _FIELD.split(text)
    return tuple(
        _FIELD_TOKENS[part] if index % 2 else part for index, part in enumerate(parts) if part
    )


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt, where its special tokens are, and the images that its placeholders stand for."""

    pieces: Sequence[Piece] = field(repr=False)
    """Plain stretches and special tokens, in turn; no piece is empty."""
    prompt: str
    special_ranges: list[tuple[int, int]]
    """Ascending half-open ranges of `prompt` (in code points), one per special token."""
    image_sources: list[ImageSource]
    """In the order of the prompt. There may be more sources than placeholders."""


class PromptWriter:
    """Collects the pieces of one prompt."""

    def __init__(self, special_tokens: SpecialTokens) -> None:
        self._spellings = special_tokens.spellings
        self._pieces: list[Piece] = []
        self._plain: list[str] = []
        self._image_sources: list[ImageSource] = []

    def text(self, text: str) -> None:
        """Append plain text."""
        self._plain.append(text)

    def special(self, token: SpecialToken) -> None:
        """Append a special token in its current spelling."""
        self._spelled(self._spellings[token])

    def spells(self, token: SpecialToken) -> bool:
        """Whether the token has a spelling at all."""
        return bool(self._spellings[token])

    def template(self, template: Template) -> None:
        """Append a fixed text with special tokens in it."""
        for part in template:
            if isinstance(part, SpecialToken):
                self.special(part)
            else:
                self._plain.append(part)

    def content(self, messages: Iterable[Message], separator: str = "\n\n") -> None:
        """Append the contents of messages with a separator between, and collect their images.

        A content without text adds no separator.
        """
        is_first = True
        for message in messages:
            self._image_sources.extend(message.image_sources)
            if not message.content:
                continue
            if not is_first:
                self._plain.append(separator)
            is_first = False
            for text, is_image in message.segments:
                if is_image:
                    self._spelled(text)
                else:
                    self._plain.append(text)

    def finish(self) -> RenderedPrompt:
        """Return what was written."""
        self._flush()
        ranges: list[tuple[int, int]] = []
        position = 0
        for text, is_special in self._pieces:
            if is_special:
                ranges.append((position, position + len(text)))
            position += len(text)
        prompt = "".join(text for text, _ in self._pieces)
        return RenderedPrompt(self._pieces, prompt, ranges, self._image_sources)

    def _spelled(self, spelling: str) -> None:
        if spelling:
            self._flush()
            self._pieces.append((spelling, True))

    def _flush(self) -> None:
        if not self._plain:
            return
        plain = "".join(self._plain)
        if plain:
            self._pieces.append((plain, False))
        self._plain.clear()
