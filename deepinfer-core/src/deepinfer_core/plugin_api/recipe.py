"""What core and a recipe say to each other: a chat goes in and token ids come out, then the ids of
the answer go in and events come out.

A recipe knows the markup of a family of models; core knows none. `RecipeSpec.target` is called
with `architecture=` and `tokenizer_json=` and returns a `Recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what the model thinks before it answers."""

    text: str
    """Without markup."""


@dataclass(frozen=True, slots=True)
class AnswerText:
    """More of the answer."""

    text: str
    """Without markup."""


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model begins to call a tool."""

    id: str
    """By which the tool's result will name the call. The same answer to the same chat should give
    the same ids, so that two runs give the same bytes."""
    name: str
    """Of the function."""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the arguments of the call that began last."""

    text: str
    """A piece of JSON text."""


ReplyEvent: TypeAlias = ReasoningText | AnswerText | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True)
class RgbImage:
    """A decoded image."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    pixels: bytes
    """Red, green and blue of each pixel, line by line from the top: 3 * width * height bytes."""


class EncodedChat(Protocol):
    """What a recipe makes of a chat."""

    @property
    def token_ids(self) -> Sequence[int]:
        """With one image token, the model's own, where each image stands."""
        ...

    @property
    def images(self) -> Sequence[RgbImage]:
        """In the order of their tokens. Core resizes them as the model wants them."""
        ...

    @property
    def constraint(self) -> Mapping[str, Any] | None:
        """What the answer must look like, as the fields of `SamplingParams.structured`; None where
        the chat leaves that to the model."""
        ...

    @property
    def starts_in_reasoning(self) -> bool:
        """The prompt has begun what the model thinks: the form begins where that ends."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]: ...


class ReplyParser(Protocol):
    """Turns the ids of one answer into events. However the ids are split into calls, the events
    are the same up to merging of neighbours of one kind. Not thread-safe.
    """

    def feed(self, token_ids: Sequence[int]) -> Sequence[ReplyEvent]:
        """Take more ids and return the events that are certain."""
        ...

    def finish(self) -> Sequence[ReplyEvent]:
        """No more ids will come, for whatever reason: return the remaining events."""
        ...


class Recipe(Protocol):
    """The protocol of a family of models. Thread-safe. What it raises ends one request."""

    def encode(self, chat: dict[str, Any]) -> EncodedChat:
        """Encode a Chat Completions request, a plain dict with `messages` and maybe `tools`."""
        ...

    def parser(self, encoded: Any) -> ReplyParser:
        """Return a parser for one answer to what `encode` returned."""
        ...


@runtime_checkable
class ReadsImages(Protocol):
    """What a recipe may have besides: it reads images that come without a chat."""

    def read_image(self, source: str | bytes) -> RgbImage:
        """Decode an image, given as a URL or as the content of a file."""
        ...
