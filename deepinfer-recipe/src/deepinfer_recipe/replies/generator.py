"""What the three protocols share: chunks that are consumed once, and the life of a reply."""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from ..jsontext import dumps_compact
from ..parsing.events import CallArguments, CallStart, TextDelta


class FinishReason(Enum):
    """Why an answer ended, before a protocol names it."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    cache_hit_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None
    """None where they are not counted."""

    @property
    def cache_miss_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return max(0, self.prompt_tokens - self.cache_hit_tokens)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended."""

    reason: FinishReason
    stop_sequence: str | None
    usage: Usage


class Chunk:
    """One event of a stream. Accumulating it into a response consumes it."""

    __slots__ = ("_data",)

    def __init__(self, data: dict[str, Any]) -> None:
        self._data: dict[str, Any] | None = data

    @property
    def data(self) -> dict[str, Any]:
        """The JSON value.

        Raises:
            RuntimeError: the chunk has been consumed.
        """
        if self._data is None:
            raise RuntimeError("protocol chunk has been consumed")
        return self._data

    def to_json(self) -> str:
        """Return the JSON text.

        Raises:
            RuntimeError: the chunk has been consumed.
        """
        return dumps_compact(self.data)

    def take(self) -> dict[str, Any]:
        """Return the JSON value and consume the chunk.

        Raises:
            RuntimeError: the chunk has been consumed.
        """
        data = self.data
        self._data = None
        return data


C = TypeVar("C", bound=Chunk)


class ChunkGenerator(ABC, Generic[C]):
    """Words the events of the parser for one protocol. Consumed by a processor."""

    _is_consumed = False

    def take(self) -> Self:
        """Consume the generator and return a working copy of it.

        Raises:
            RuntimeError: it has been consumed.
        """
        if self._is_consumed:
            raise RuntimeError("chunk generator has been consumed")
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        self._is_consumed = True
        return copy

    @abstractmethod
    def start(self, usage: Usage, system_fingerprint: str | None) -> list[C]:
        """Return the opening chunks."""

    @abstractmethod
    def event(self, event: TextDelta | CallStart | CallArguments) -> list[C]:
        """Return the chunks of one parser event."""

    @abstractmethod
    def finish(self, ending: Ending) -> list[C]:
        """Return the closing chunks."""


class CallIds:
    """Fresh ids for the tool calls of one reply.

    They are marked where a request in thinking mode got no reasoning before the call, so that the
    next request shows it.
    """

    __slots__ = ("_lacks_reasoning",)

    def __init__(self, *, thinking_mode: bool) -> None:
        self._lacks_reasoning = thinking_mode

    def see(self, event: TextDelta) -> None:
        """Take note of text."""
        if event.is_reasoning and event.text:
            self._lacks_reasoning = False

    def new(self, index: int) -> str:
        """Return a random id for a call."""
        mark = "ET_" if self._lacks_reasoning else ""
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(20))
        return f"call_{index:02}_{mark}{letters}{secrets.randbelow(10000):04}"


_ALPHABET = string.ascii_letters + string.digits
