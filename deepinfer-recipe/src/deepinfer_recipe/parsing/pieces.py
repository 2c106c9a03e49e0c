"""Pieces of output in line until the parser has classified their characters.

Turns "so many characters are content" into runs that never span two pieces. Knows the actions of
text but not the states behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..streaming.logprobs import TokenLogprob
from .events import ParserEvent
from .patterns import Origin
from .states import Action


@dataclass(slots=True)
class Piece:
    """One piece of model output."""

    text: str
    origin: Origin = Origin.TEXT
    num_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None


EmitRun = Callable[[Action, str, list[TokenLogprob] | None], None]


class PieceQueue:
    """The pieces whose text is not classified yet, oldest first.

    A run is the longest stretch of one piece with one action, or a match. It is reported when
    other text follows it or its piece is complete; a match that spans pieces belongs to the first
    of them. An empty piece has the action of the text before it, or of the text after it if it is
    the first; next to a match it has none.
    """

    __slots__ = (
        "_action", "_emit_event", "_emit_run", "_event", "_follows_match", "_pieces", "_position",
        "_run_start",
    )  # fmt: skip

    def __init__(self, emit_run: EmitRun, emit_event: Callable[[ParserEvent], None]) -> None:
        self._emit_run = emit_run
        self._emit_event = emit_event
        self._event: ParserEvent | None = None  # of a match that is not reported yet
        self._pieces: deque[Piece] = deque()
        self._position = 0  # of the first unclassified character in the first piece
        self._run_start = 0
        self._action: Action | None = None  # of the last classified text
        self._follows_match = False

    def append(self, piece: Piece) -> None:
        """Put a piece in line."""
        self._pieces.append(piece)
        if not piece.text and (self._action is not None or self._follows_match):
            self._drain_empty()

    def classify(self, count: int, action: Action) -> None:
        """Give the next `count` characters an action."""
        if count == 0:
            return
        if self._action is not action or self._follows_match:
            self._end_run()
        self._action = action
        self._follows_match = False
        while count:
            piece = self._pieces[0]
            taken = min(count, len(piece.text) - self._position)
            self._position += taken
            count -= taken
            if self._position == len(piece.text):
                self._end_run(is_complete=True)
        self._drain_empty()

    def settle(self) -> None:
        """Report what has been classified so far, as a match is about to follow."""
        self._end_run()

    def match(self, count: int, event: ParserEvent | None) -> None:
        """Take the next `count` characters as a match with an event."""
        self._event = event
        self._follows_match = True
        while count:
            left = len(self._pieces[0].text) - self._position
            if count < left:
                self._position += count
                self._run_start = self._position
                break
            count -= left
            self._end_run(is_complete=True)
            while count and not self._pieces[0].text:
                self._pieces.popleft()
        self._drain_empty()

    def first_logprobs(self) -> list[TokenLogprob] | None:
        """Return the tokens of the piece that the next character belongs to."""
        return self._pieces[0].logprobs

    def _drain_empty(self) -> None:
        while self._pieces and not self._pieces[0].text:
            self._end_run(is_complete=True)

    def _end_run(self, *, is_complete: bool = False) -> None:
        if self._event is not None:
            self._emit_event(self._event)
            self._event = None
        if not self._pieces:
            return
        piece = self._pieces[0]
        has_run = self._position > self._run_start or (is_complete and not piece.text)
        if has_run and self._action is not None and not self._follows_match:
            text = piece.text[self._run_start : self._position]
            self._emit_run(self._action, text, piece.logprobs)
        self._run_start = self._position
        if is_complete:
            self._pop()

    def _pop(self) -> None:
        self._pieces.popleft()
        self._position = self._run_start = 0
