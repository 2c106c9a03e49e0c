"""How many tokens a step may hold: the configured limit, or less for a while after memory ran out.

Knows no request. Shrinks by half at once and grows back slowly, since a step that fails costs a
whole forward.
"""

from __future__ import annotations

NUM_STEPS_TO_GROW = 16
"""Steps that must succeed before the budget doubles: then at most a sixteenth of them fail."""


class TokenBudget:
    """The budget of the next step."""

    __slots__ = ("_limit", "_num_good_steps", "num_tokens")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_good_steps = 0
        self.num_tokens = limit

    def shrink(self, num_failed_tokens: int) -> None:
        """A step of so many tokens did not fit into memory."""
        self.num_tokens = max(1, num_failed_tokens // 2)
        self._num_good_steps = 0

    def restore(self) -> None:
        """The cause is gone."""
        self.num_tokens = self._limit

    def note_success(self) -> None:
        """A step was computed."""
        if self.num_tokens == self._limit:
            return
        self._num_good_steps += 1
        if self._num_good_steps >= NUM_STEPS_TO_GROW:
            self.num_tokens = min(self._limit, 2 * self.num_tokens)
            self._num_good_steps = 0
