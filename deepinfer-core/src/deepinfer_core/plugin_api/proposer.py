"""What a maker of draft tokens is, for those that run on the host. Core's own follow it too.

A draft is a guess at the tokens that come next. The target draws every token itself and takes
over drafts that it agrees with, so a bad guess costs time and nothing else. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Guesser(Protocol):
    """Guesses for one request. Made when it draws its first token, dropped when it ends."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in the next tokens, which are final: first the prompt and what was drawn, then what
        each step adds. Called between steps, so keep it short."""
        ...

    def propose(self, num_tokens: int) -> Sequence[int]:
        """Guess what comes behind all tokens so far.

        Args:
            num_tokens: at most so many; what is beyond is cut off, and so is everything from the
                first id on that the vocabulary does not have.

        Returns:
            Ids in order; empty where there is nothing to go by, which costs nothing.
        """
        ...


class Proposer(Protocol):
    """The target of a `ProposerSpec` with `runs_on="host"`, called without arguments, gives one.

    Whatever its guessers raise ends the drafts of that request, not the request.
    """

    def start(self) -> Guesser:
        """A guesser for one more request."""
        ...
