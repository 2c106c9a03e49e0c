"""Suffix automaton: what followed the longest end of the text that occurred before.

Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text", built token by
token. No torch, no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.speculative.ngram import MAX_INDEXED, continuation

MIN_MATCH = 2
"""Tokens that must have occurred before. A longer match is trusted for as many drafts."""


class SuffixGuesser:
    """The automaton of one request's text. State 0 is the empty string."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._moves: list[dict[int, int]] = [{}]
        self._links = [-1]
        """State -> that of its longest suffix with other occurrences."""
        self._lengths = [0]
        """Of the longest string of each state."""
        self._ends = [0]
        """Index behind the first occurrence of each state's strings."""
        self._last = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[-MAX_INDEXED:]:
            self._ids.append(token_id)
            self._append(token_id)

    def propose(self, num_tokens: int) -> Sequence[int]:
        repeated = self._links[self._last]
        if repeated < 0 or self._lengths[repeated] < MIN_MATCH:
            return ()
        num_tokens = min(num_tokens, self._lengths[repeated])
        return continuation(self._ids, self._ends[repeated], num_tokens)

    def _append(self, token_id: int) -> None:
        moves, links, lengths = self._moves, self._links, self._lengths
        new = self._add({}, lengths[self._last] + 1, len(self._ids))
        state, self._last = self._last, new
        while state >= 0 and token_id not in moves[state]:
            moves[state][token_id] = new
            state = links[state]
        if state < 0:
            links[new] = 0
            return
        target = moves[state][token_id]
        if lengths[target] == lengths[state] + 1:
            links[new] = target
            return
        # The shorter strings of `target` now occur where its longer ones do not.
        split = self._add(dict(moves[target]), lengths[state] + 1, self._ends[target])
        links[split] = links[target]
        links[target] = links[new] = split
        while state >= 0 and moves[state].get(token_id) == target:
            moves[state][token_id] = split
            state = links[state]

    def _add(self, moves: dict[int, int], length: int, end: int) -> int:
        self._moves.append(moves)
        self._links.append(-1)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._moves) - 1


class Suffix:
    """A `Proposer`."""

    def start(self) -> SuffixGuesser:
        return SuffixGuesser()
