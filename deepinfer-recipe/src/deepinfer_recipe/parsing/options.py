"""What the output parser is told about a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..arguments import check_bool, check_instance, check_list
from ..specials import SpecialTokens


class ThinkingInitialStage(Enum):
    """The stage where parsing begins in thinking mode."""

    ReasoningStart = "ReasoningStart"
    """The reasoning of a new turn; leading newlines are dropped."""
    ReasoningContinuation = "ReasoningContinuation"
    """The reasoning of a continued message; leading newlines are kept."""
    ContentContinuation = "ContentContinuation"
    """The answer of a continued message whose reasoning has ended; leading newlines are kept."""

    def starts_in_reasoning(self) -> bool:
        """Return whether parsing begins in reasoning."""
        return self is not ThinkingInitialStage.ContentContinuation


@dataclass(slots=True, kw_only=True)
class ParsingOptions:
    """Settings of the output parser; the fields may be changed until a processor is built."""

    parse_tool_calls: bool = True
    """Whether tool-call markup is parsed."""
    starts_in_tool_calls: bool = False
    """Whether the prompt has already opened the block of calls; goes before the thinking stage."""
    parse_json_output: bool = False
    """Whether fenced or bare JSON is looked for and the text around it replaced by spaces."""
    thinking_initial_stage: ThinkingInitialStage | None = None
    """Where parsing begins in thinking mode; None means thinking is off. A stage also makes the
    processor report reasoning tokens."""
    stop_sequences: list[str] = field(default_factory=list)
    """Strings that end the answer; empty ones are ignored."""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    """Spellings of the markers."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, _CHECKS[name](name, value))


def _check_stage(name: str, value: object) -> ThinkingInitialStage | None:
    return None if value is None else check_instance(name, value, ThinkingInitialStage)


def _check_stops(name: str, value: Sequence[str] | None) -> list[str]:
    return [] if value is None else check_list(name, value, str)


def _check_specials(name: str, value: object) -> SpecialTokens:
    return SpecialTokens() if value is None else check_instance(name, value, SpecialTokens)


_CHECKS: dict[str, Any] = {
    "parse_tool_calls": check_bool,
    "starts_in_tool_calls": check_bool,
    "parse_json_output": check_bool,
    "thinking_initial_stage": _check_stage,
    "stop_sequences": _check_stops,
    "special_tokens": _check_specials,
}
