"""`Drafting`: the guesses of one request, and how they have fared.

Owns the border to a proposer, which may be anybody's: what it raises or returns harms nobody. Knows
no step and no other request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deepinfer_core.plugin_api.proposer import Guesser, Proposer

logger = logging.getLogger(__name__)

PRIOR_ACCEPTED, PRIOR_REJECTED = 2.0, 1.0
"""What a request is believed to have seen before its first draft."""
MEMORY = 0.9
"""Weight of the past after each verified draft."""
RECOVERY = 0.98
"""Weight of what is known after each draft that was not worth a try: text changes."""


class Drafting:
    """Asks a guesser and learns from what became of its drafts.

    Args:
        proposer: makes the guesser.
        vocab_size: ids from it on end a draft.
    """

    __slots__ = ("_guesser", "_num_accepted", "_num_rejected", "_num_seen", "_vocab_size")

    def __init__(self, proposer: Proposer, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_seen = 0
        self._num_accepted = self._num_rejected = 0.0
        self._guesser: Guesser | None = None
        try:
            self._guesser = proposer.start()
        except Exception as error:  # a plugin border: the request goes on without drafts
            self._give_up(error)

    def propose(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], num_tokens: int
    ) -> Sequence[int]:
        """At most `num_tokens` valid ids behind a request's settled tokens.

        Args:
            output_ids: all so far; only ever longer than at the last call.
        """
        if self._guesser is None:
            return ()
        num_seen, self._num_seen = self._num_seen, len(prompt_ids) + len(output_ids)
        try:
            if not num_seen:
                self._guesser.extend(prompt_ids)
            self._guesser.extend(output_ids[max(0, num_seen - len(prompt_ids)) :])
            return self._checked(self._guesser.propose(num_tokens)[:num_tokens])
        except Exception as error:  # as above
            self._give_up(error)
            return ()

    @property
    def acceptance(self) -> float:
        """The estimated share of drafts that are accepted when those before them are."""
        accepted = self._num_accepted + PRIOR_ACCEPTED
        return accepted / (accepted + self._num_rejected + PRIOR_REJECTED)

    def survivals(self, num_drafts: int) -> list[float]:
        """How likely each of so many drafts is to be accepted together with those before it."""
        return [self.acceptance**depth for depth in range(1, num_drafts + 1)]

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """A step settled: so many drafts were accepted, and the next one, if any, was not."""
        self._num_accepted = MEMORY * self._num_accepted + num_accepted
        self._num_rejected = MEMORY * self._num_rejected + (num_accepted < num_drafts)

    def relax(self) -> None:
        """A draft was not worth a try."""
        self._num_accepted *= RECOVERY
        self._num_rejected *= RECOVERY

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        """The ids up to the first that is none."""
        checked = []
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                break
            checked.append(int(token_id))
        return checked

    def _give_up(self, error: Exception) -> None:
        self._guesser = None
        logger.warning(
            "a proposer failed, so its request goes on without drafts: %s: %s",
            type(error).__name__,
            error,
        )
