"""`Constraint`: what one request may draw next. Its grammar, and when that begins.

While a model thinks, it may draw what it likes, save the end of its answer; the grammar begins
behind the end of thinking. Knows ids and bits, no request, step or tensor.
INVARIANT: `advance` is called once for each token that the request keeps, and nothing else moves
on; drafts are looked at and taken back. What a backend raises ends its own request only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import GrammarError
from deepinfer_core.plugin_api.grammar import GrammarMatcher

Row = NDArray[np.int32]
"""[ceil(V / 32)] bits of allowed tokens."""
Phase = Literal["undecided", "thinking", "answer"]
"""`undecided`: the first token says whether the model thinks."""
ThinkingStart = Literal["closed", "open", "undecided"]
"""How a prompt ends: the answer begins, thinking goes on, or the model may begin to think."""


@dataclass(frozen=True, slots=True)
class Markers:
    """Tokens around what a model thinks."""

    start_id: int
    end_id: int


class _State(NamedTuple):
    phase: Phase
    num_thought: int


class Constraint:
    """What one request may draw.

    Args:
        matcher: None: anything, and only thinking is limited.
        end_ids: tokens that end the answer and write nothing; allowed where the grammar may end.
        markers: needed unless `start` is `closed`.
        budget: tokens of thinking, after which only its end may be drawn; None: no limit.
    """

    __slots__ = (
        "_budget",
        "_end_ids",
        "_markers",
        "_matcher",
        "_num_matched",
        "_scratch",
        "_scratch_at",
        "_state",
        "error",
        "num_advanced",
    )

    def __init__(
        self,
        matcher: GrammarMatcher | None,
        *,
        end_ids: Collection[int],
        markers: Markers | None = None,
        start: ThinkingStart = "closed",
        budget: int | None = None,
    ) -> None:
        phases: dict[ThinkingStart, Phase] = {"closed": "answer", "open": "thinking"}
        assert markers is not None or start == "closed", "thinking without markers"
        self._matcher = matcher
        self._markers = markers
        self._budget = budget
        self._end_ids = frozenset(end_ids)
        self._num_matched = 0
        self._state = _State(phases.get(start, "undecided"), 0)
        self._scratch: Row | None = None
        self._scratch_at = -1
        """How many tokens stand before what `_scratch` allows."""
        self.num_advanced = 0
        """Tokens that the request has."""
        self.error: GrammarError | None = None
        """Why the request must end."""

    @property
    def is_active(self) -> bool:
        """It may still forbid something."""
        return self._matcher is not None or self._state.phase != "answer"

    def advance(self, token_id: int) -> bool:
        """Go on by a token that the request keeps.

        Returns:
            Whether the answer is complete: nothing can follow.

        Raises:
            GrammarError: the grammar does not allow it, or its backend failed.
        """
        self.num_advanced += 1
        try:
            if not self._move(token_id):
                raise GrammarError(
                    f"token {token_id} was drawn and does not belong to the grammar; this is a "
                    "fault of the grammar's backend: choose another with structured.grammar_backend"
                )
            return self._is_complete()
        except GrammarError:
            raise
        except Exception as error:  # a plugin's border; whatever it raises ends one request
            raise _backend_failed(error) from error

    def fill(self, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        """Write what may be drawn now, and behind each draft in turn.

        A draft that is not allowed is rejected, so what is drawn behind it is void: these rows
        allow everything. If anything fails, so do all, and `error` says why.

        Args:
            rows: one more than drafts.
        """
        state, num_matched = self._state, self._num_matched
        try:
            self._look_ahead(rows, drafts)
            if self._matcher is not None:
                self._matcher.rollback(self._num_matched - num_matched)
        except GrammarError as error:
            self._fail(error, rows)
        except Exception as error:  # as above
            self._fail(_backend_failed(error), rows)
        self._state, self._num_matched = state, num_matched

    def _look_ahead(self, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        for index, row in enumerate(rows):
            self._fill(row, is_next=not index)
            if not index and not row.any():
                raise GrammarError(
                    "the grammar allows no token of this vocabulary here, and may not end; "
                    "look for a rule that cannot be completed"
                )
            if index == len(drafts):
                return
            draft = drafts[index]
            if not _has(row, draft) or draft in self._end_ids:
                _allow_all(rows[index + 1 :])
                return
            self._move(draft)

    def _fail(self, error: GrammarError, rows: Sequence[Row]) -> None:
        self.error = error
        _allow_all(rows)

    def _move(self, token_id: int) -> bool:
        """Go on by one token, which may be taken back. False: it is not allowed."""
        phase, num_thought = self._state
        markers = self._markers
        if phase == "undecided":
            assert markers is not None
            if token_id == markers.start_id:
                self._state = _State("thinking", 0)
                return True
            self._state = _State("answer", 0)
        elif phase == "thinking":
            assert markers is not None
            is_end = token_id == markers.end_id
            self._state = _State("answer" if is_end else "thinking", num_thought + 1)
            return True
        if self._matcher is None:
            return True
        if not self._matcher.accept(token_id):
            return False
        self._num_matched += 1
        return True

    def _is_complete(self) -> bool:
        if self._matcher is None or self._state.phase != "answer" or self._scratch is None:
            return False
        if not self._matcher.can_end:
            return False
        self._matcher.fill(self._scratch)
        self._scratch_at = self.num_advanced
        return not self._scratch.any()

    def _fill(self, row: Row, *, is_next: bool) -> None:
        """Write what may be drawn here.

        Args:
            is_next: behind the tokens that the request has, not behind drafts.
        """
        phase, num_thought = self._state
        markers = self._markers
        if phase == "thinking":
            assert markers is not None
            if self._budget is not None and num_thought >= self._budget:
                row.fill(0)
                _set(row, markers.end_id)
                return
            row.fill(-1)
            if self._matcher is not None:  # the answer is still to come
                for end_id in self._end_ids:
                    _clear(row, end_id)
            return
        if self._matcher is None:
            row.fill(-1)
        else:
            if self._scratch is None:
                self._scratch = np.empty_like(row)
            if is_next and self._scratch_at == self.num_advanced:
                row[:] = self._scratch  # found out when the last token was kept
            else:
                self._matcher.fill(row)
            if self._matcher.can_end:
                for end_id in self._end_ids:
                    _set(row, end_id)
        if phase == "undecided":
            assert markers is not None
            _set(row, markers.start_id)


def _set(row: Row, token_id: int) -> None:
    row.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(row: Row, token_id: int) -> None:
    row.view(np.uint32)[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)


def _has(row: Row, token_id: int) -> bool:
    return bool(int(row[token_id >> 5]) >> (token_id & 31) & 1)


def _allow_all(rows: Sequence[Row]) -> None:
    for row in rows:
        row.fill(-1)


def _backend_failed(error: Exception) -> GrammarError:
    return GrammarError(
        f"the grammar's backend failed: {type(error).__name__}: {error}; simplify the grammar or "
        "choose another backend with structured.grammar_backend"
    )
