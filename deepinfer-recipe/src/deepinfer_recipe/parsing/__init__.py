"""Parsing of model output: reasoning, answer, tool calls, JSON, stop sequences."""

from .events import (
    ArgumentsPart,
    CallArguments,
    CallStart,
    ParserEvent,
    StopMatched,
    TextDelta,
)
from .options import ParsingOptions, ThinkingInitialStage
from .parser import OutputParser
from .patterns import Origin
from .pieces import Piece

__all__ = [
    "ArgumentsPart",
    "CallArguments",
    "CallStart",
    "Origin",
    "OutputParser",
    "ParserEvent",
    "ParsingOptions",
    "Piece",
    "StopMatched",
    "TextDelta",
    "ThinkingInitialStage",
]
