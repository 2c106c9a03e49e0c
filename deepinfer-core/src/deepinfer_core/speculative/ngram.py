"""Prompt lookup: what followed the last few tokens when they last occurred.

No torch, no model. See Saxena 2023, "Prompt Lookup Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 3, 2)
"""Of the n-grams that are looked up, the longest first."""
MAX_INDEXED = 8192
"""Tokens of a prompt that are indexed, its last ones: a request must not hold up the others."""


class NgramGuesser:
    """The n-grams of one request, each with where it was last continued."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._continued: list[dict[tuple[int, ...], int]] = [{} for _ in LENGTHS]
        """For each length: n-gram -> index of the token behind its latest occurrence."""

    def extend(self, token_ids: Sequence[int]) -> None:
        ids = self._ids
        for token_id in token_ids[-MAX_INDEXED:]:
            # Indexed once it has a continuation: the last n-gram must not find itself.
            end = len(ids)
            for length, continued in zip(LENGTHS, self._continued, strict=True):
                if end >= length:
                    continued[tuple(ids[end - length :])] = end
            ids.append(token_id)

    def propose(self, num_tokens: int) -> Sequence[int]:
        ids = self._ids
        for length, continued in zip(LENGTHS, self._continued, strict=True):
            start = continued.get(tuple(ids[-length:]))
            if start is not None:
                return continuation(ids, start, num_tokens)
        return ()


class Ngram:
    """A `Proposer`."""

    def start(self) -> NgramGuesser:
        return NgramGuesser()


def continuation(token_ids: Sequence[int], start: int, num_tokens: int) -> list[int]:
    """The ids from `start` on; where they end, the text repeats itself with that period."""
    period = len(token_ids) - start
    return [token_ids[start + index % period] for index in range(num_tokens)]
