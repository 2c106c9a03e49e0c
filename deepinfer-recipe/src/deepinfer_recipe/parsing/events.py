"""What the output parser reports, free of any protocol."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ..streaming.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool
    logprobs: list[TokenLogprob] | None = None
    """All tokens of the piece of output that the text is from, or None if none were given."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins. Calls count from 0."""

    index: int
    name: str


class ArgumentsPart(Enum):
    """What a stretch of arguments is."""

    PUNCTUATION = "punctuation"
    NAME = "name"
    STRING = "string"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More JSON text of the arguments of the last call."""

    json_text: str
    part: ArgumentsPart
    text: str
    """The same before escaping; differs in a `STRING` only."""


@dataclass(frozen=True, slots=True)
class StopMatched:
    """A stop sequence ended the output."""

    stop_sequence: str


ParserEvent: TypeAlias = TextDelta | CallStart | CallArguments | StopMatched
