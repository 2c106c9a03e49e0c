"""A proposer that has seen the answers, so that drafts are accepted as often as a test wants.

Real text repeats itself too seldom, and tiny random models never do what one expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

SHARE_RIGHT = 0.8
"""Of the tokens of a draft: rejection comes at every depth, and acceptance of all."""

Script = tuple[Sequence[int], Sequence[int]]
"""A prompt, and what one of its samples answers."""


class RehearsedGuesser:
    """Finds the script that a request follows, and recites from it with mistakes."""

    def __init__(self, scripts: Sequence[Script], rng: Random) -> None:
        self._scripts = scripts
        self._rng = rng
        self._ids: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        self._ids += token_ids

    def propose(self, num_tokens: int) -> Sequence[int]:
        rng, count = self._rng, len(self._ids)
        for prompt, answer in self._scripts:
            whole = [*prompt, *answer]
            if count < len(whole) and whole[:count] == self._ids:
                drafts = whole[count : count + rng.randint(0, num_tokens)]
                return [
                    token if rng.random() < SHARE_RIGHT else rng.choice(self._ids)
                    for token in drafts
                ]
        return ()


class Rehearsed:
    """A `Proposer`.

    Args:
        scripts: all that may be asked and answered.
    """

    def __init__(self, scripts: Sequence[Script], *, seed: int) -> None:
        self._scripts = scripts
        self._rng = Random(f"rehearsal-{seed}")

    def start(self) -> RehearsedGuesser:
        return RehearsedGuesser(self._scripts, self._rng)
