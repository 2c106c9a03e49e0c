"""`Drafting`: the guesses of one request by a proposer on the host, and how they have fared.

Owns the border to a proposer, which may be anybody's: what it raises or returns harms nobody. Knows
no step and no other request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile

from deepinfer_core.plugin_api.proposer import Guesser, Proposer
from deepinfer_core.speculative.acceptance import Acceptance

logger = logging.getLogger(__name__)


class Drafting(Acceptance):
    """Asks a guesser, and learns from what became of its drafts.

    Args:
        proposer: makes the guesser.
        vocab_size: ids from it on end a draft.
    """

    __slots__ = ("_guesser", "_num_seen", "_vocab_size")

    def __init__(self, proposer: Proposer, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._num_seen = 0
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
            return known_ids(self._guesser.propose(num_tokens)[:num_tokens], self._vocab_size)
        except Exception as error:  # as above
            self._give_up(error)
            return ()

    def _give_up(self, error: Exception) -> None:
        self._guesser = None
        logger.warning(
            "a proposer failed, so its request goes on without drafts: %s: %s",
            type(error).__name__,
            error,
        )


def known_ids(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids up to the first that is none."""
    return [int(token_id) for token_id in takewhile(lambda i: 0 <= i < vocab_size, token_ids)]
