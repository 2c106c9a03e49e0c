"""The output parser: runs the states of `states` over pieces of output.

Fed with pieces in any chunking; the events are the same up to merging of neighbouring deltas.
Holds back only text that may still turn out to be a marker. Cost is linear in the output.
"""

from __future__ import annotations

from ..jsontext import quote
from ..streaming.logprobs import TokenLogprob
from .events import (
    ArgumentsPart,
    CallArguments,
    CallStart,
    ParserEvent,
    StopMatched,
    TextDelta,
)
from .options import ParsingOptions
from .patterns import Matcher
from .pieces import Piece, PieceQueue
from .states import Action, Effect, Rule, build_states


class OutputParser:
    """Parses one answer."""

    def __init__(self, options: ParsingOptions) -> None:
        self._states, first = build_states(options)
        self._events: list[ParserEvent] = []
        self._queue = PieceQueue(self._emit_run, self._emit_event)
        self._num_unclassified = 0
        self._name: list[str] = []
        self.num_calls = 0
        """Tool calls started so far."""
        self.is_stopped = False
        """Whether a stop sequence has matched; nothing more is to be fed then."""
        self._enter(first)

    def feed(self, piece: Piece) -> list[ParserEvent]:
        """Take one piece and return the events that are certain now."""
        self._queue.append(piece)
        text, origin = piece.text, piece.origin.value
        position, length = 0, len(text)
        while position < length and not self.is_stopped:
            matcher = self._matcher
            if not matcher.num_held:
                candidate = self._state.patterns.next_candidate(text, position, origin)
                if candidate > position:
                    matcher.skip()
                    self._num_unclassified += candidate - position
                    self._classify_all_but(0)
                    position = candidate
                    continue
            completed = matcher.feed(text[position], origin)
            position += 1
            self._num_unclassified += 1
            if completed is None:
                self._classify_all_but(matcher.num_held)
            else:
                self._classify_all_but(completed[1])
                self._take_match(self._state.rules[completed[0]])
        return self._take_events()

    def finish(self) -> list[ParserEvent]:
        """End the output: held-back text is what it looks like without a marker."""
        if not self.is_stopped:
            self._classify_all_but(0)
        return self._take_events()

    def _enter(self, name: str) -> None:
        self._state = self._states[name]
        self._matcher = Matcher(self._state.patterns)

    def _classify_all_but(self, num_held: int) -> None:
        self._queue.classify(self._num_unclassified - num_held, self._state.action)
        self._num_unclassified = num_held

    def _take_match(self, rule: Rule) -> None:
        self._queue.settle()
        self._queue.match(self._num_unclassified, self._match_event(rule))
        self._num_unclassified = 0
        if rule.effect is Effect.STOP:
            self.is_stopped = True
            self._events.append(StopMatched(rule.pattern.text))
        self._enter(rule.target)

    def _match_event(self, rule: Rule) -> ParserEvent | None:
        match rule.effect:
            case Effect.CONTENT:
                return TextDelta(rule.pattern.text, False, self._queue.first_logprobs())
            case Effect.BEGIN_NAME:
                self._name = []
            case Effect.START_CALL:
                self.num_calls += 1
                return CallStart(self.num_calls - 1, "".join(self._name))
            case Effect.ARGUMENTS:
                return CallArguments(rule.literal, ArgumentsPart.PUNCTUATION, rule.literal)
        return None

    def _emit_event(self, event: ParserEvent) -> None:
        self._events.append(event)

    def _emit_run(self, action: Action, text: str, logprobs: list[TokenLogprob] | None) -> None:
        match action:
            case Action.CONTENT:
                self._events.append(TextDelta(text, False, logprobs))
            case Action.REASONING:
                self._events.append(TextDelta(text, True, logprobs))
            case Action.SPACE:
                self._events.append(TextDelta(" ", False, logprobs))
            case Action.STRING:
                escaped = quote(text)[1:-1]
                self._events.append(CallArguments(escaped, ArgumentsPart.STRING, text))
            case Action.RAW:
                self._events.append(CallArguments(text, ArgumentsPart.RAW, text))
            case Action.PARAMETER:
                self._events.append(CallArguments(text, ArgumentsPart.NAME, text))
            case Action.NAME:
                self._name.append(text)
            case Action.SKIP:
                pass

    def _take_events(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events
