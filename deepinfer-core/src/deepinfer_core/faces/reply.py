"""`ReplyReader`: a recipe's parser for one answer, and what its events add to reasoning, answer
and tool calls.

Knows no markup and no engine. Where a stop string ends an output is found in the text
(`text/stops.py`); here it is only kept from being shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepinfer_core.outputs import ToolCallDelta
from deepinfer_core.plugin_api.recipe import (
    AnswerText,
    ReasoningText,
    ReplyEvent,
    ReplyParser,
    ToolCallArguments,
    ToolCallStart,
)
from deepinfer_core.text.stops import StopChecker


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """What some ids added to an answer."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


class ReplyReader:
    """Reads one answer. The joined deltas do not depend on how the ids come in pieces.

    Args:
        stop, include_stop_str_in_output: as in `SamplingParams`.
    """

    def __init__(
        self,
        parser: ReplyParser,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
    ) -> None:
        self._parser = parser
        self._shows_stop = include_stop_str_in_output
        # Of text of the last kind. Text of another kind cannot complete a stop string of it.
        self._checker = StopChecker(stop, include_stop_str_in_output=include_stop_str_in_output)
        self._last_kind: type[ReplyEvent] | None = None
        self._num_calls = 0
        self._is_cut = False

    def feed(self, token_ids: Sequence[int]) -> ReplyDelta:
        """Take ids in which no stop string ended.

        Raises:
            Exception: whatever the parser raises.
            TypeError, ValueError: what it reports makes no answer.
        """
        parts = _Parts()
        if token_ids:
            self._take(self._parser.feed(token_ids), parts, is_stopped=False)
        return parts.join()

    def finish(self, token_ids: Sequence[int], *, is_stopped: bool) -> ReplyDelta:
        """Take the last ids and give out what was held back.

        Args:
            is_stopped: a stop string ended with the last of the ids; or, if there are none, with
                what the end of the output made of earlier ones.

        Raises:
            Exception: as `feed`.
        """
        parts = _Parts()
        if token_ids:
            self._take(self._parser.feed(token_ids[:-1]), parts, is_stopped=False)
            self._take(self._parser.feed(token_ids[-1:]), parts, is_stopped=is_stopped)
        self._take(self._parser.finish(), parts, is_stopped=is_stopped)
        # A stop string that ended in markup began in what is still held.
        if self._shows_stop or not is_stopped:
            self._flush(parts)
        return parts.join()

    def _take(self, events: Sequence[ReplyEvent], parts: _Parts, *, is_stopped: bool) -> None:
        for event in events:
            if self._is_cut:
                return
            if type(event) is not self._last_kind:
                self._flush(parts)
                self._last_kind = type(event)
            match event:
                case ReasoningText():
                    parts.reasoning.append(self._shown(event.text, is_stopped=is_stopped))
                case AnswerText():
                    parts.content.append(self._shown(event.text, is_stopped=is_stopped))
                case ToolCallStart():
                    parts.calls.append((self._num_calls, event.id, event.name, []))
                    self._num_calls += 1
                case ToolCallArguments():
                    parts.add_arguments(event.text, self._num_calls - 1)
                case _:
                    raise TypeError(f"{type(event).__name__} is no event of an answer")

    def _shown(self, text: str, *, is_stopped: bool) -> str:
        # Where the output was not stopped, what looks like a match is none: markup stood between
        # its parts, or it came before `min_tokens`.
        shown, matched = self._checker.feed(text, armed=is_stopped)
        self._is_cut = matched is not None
        return shown

    def _flush(self, parts: _Parts) -> None:
        held = self._checker.finish()
        (parts.reasoning if self._last_kind is ReasoningText else parts.content).append(held)


class _Parts:
    """A delta in the making."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[int, str | None, str | None, list[str]]] = []

    def add_arguments(self, text: str, index: int) -> None:
        if index < 0:
            raise ValueError("arguments came before the start of a tool call")
        if not self.calls:  # the call began in an earlier delta
            self.calls.append((index, None, None, []))
        self.calls[-1][3].append(text)

    def join(self) -> ReplyDelta:
        calls = [
            ToolCallDelta(index, id, name, "".join(arguments))
            for index, id, name, arguments in self.calls
        ]
        return ReplyDelta("".join(self.content), "".join(self.reasoning), calls)
