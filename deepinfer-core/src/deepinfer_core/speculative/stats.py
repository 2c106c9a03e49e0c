"""What has become of drafts so far, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any


@dataclass(slots=True, kw_only=True)
class DraftCounts:
    """What became of drafts (`speculative.proposer`), as plain numbers."""

    num_draft_steps: int = 0
    """Times that a request drew behind drafts."""
    num_proposed_tokens: int = 0
    """Guesses that were made."""
    num_declined_tokens: int = 0
    """Guesses that the guard did not find worth computing (`speculative.draft_guard`)."""
    num_draft_tokens: int = 0
    """Guesses that were computed; those that were not accepted are wasted."""
    num_accepted_tokens: int = 0
    num_drafting_off: int = 0
    """Requests for which the guard ended drafting, since it cost more than it gave."""
    drafted_by_position: tuple[int, ...] = ()
    """How often a draft had a first guess, a second, and so on."""
    accepted_by_position: tuple[int, ...] = ()
    """How often these were accepted."""

    @property
    def num_wasted_tokens(self) -> int:
        """Guesses that were computed for nothing."""
        return self.num_draft_tokens - self.num_accepted_tokens

    @property
    def mean_accepted_len(self) -> float:
        """Guesses accepted each time that a request drew behind some; one token comes on top."""
        return self.num_accepted_tokens / max(1, self.num_draft_steps)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of the first guesses that were accepted, of the second ones, and so on."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / max(1, drafted) for accepted, drafted in pairs)

    @property
    def budget_used(self) -> float:
        """Share of the guesses made that were computed: there was room and they seemed worth it."""
        return self.num_draft_tokens / max(1, self.num_proposed_tokens)


def joined_stats(parts: Iterable[DraftStats | None]) -> DraftStats:
    """Of several requests together; None counts nothing."""
    whole = DraftStats()
    for part in parts:
        if part is not None:
            whole.add(part)
    return whole


class DraftStats:
    """Counts since the start, of an engine or of one request."""

    __slots__ = (
        "accepted",
        "drafted",
        "num_declined",
        "num_proposed",
        "num_turned_off",
        "num_verified",
    )

    def __init__(self) -> None:
        self.num_proposed = 0
        """Guesses that were made."""
        self.num_declined = 0
        """Of these, not worth computing."""
        self.num_turned_off = 0
        """Requests that go on without drafts, since they were not worth their time."""
        self.num_verified = 0
        """Times that a request drew behind drafts."""
        self.drafted: list[int] = []
        """By position in a draft: computed."""
        self.accepted: list[int] = []
        """By position: accepted."""

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """One request drew behind drafts."""
        self.num_verified += 1
        missing = num_drafts - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for position in range(num_drafts):
            self.drafted[position] += 1
        for position in range(num_accepted):
            self.accepted[position] += 1

    def add(self, other: DraftStats) -> None:
        """Count what another has counted too."""
        self.num_proposed += other.num_proposed
        self.num_declined += other.num_declined
        self.num_turned_off += other.num_turned_off
        self.num_verified += other.num_verified
        for mine, theirs in ((self.drafted, other.drafted), (self.accepted, other.accepted)):
            mine[:] = [a + b for a, b in zip_longest(mine, theirs, fillvalue=0)]

    def to_dict(self) -> dict[str, Any]:
        """Under the names of `EngineMetrics` and `RequestMetrics`."""
        return {
            "num_draft_steps": self.num_verified,
            "num_proposed_tokens": self.num_proposed,
            "num_draft_tokens": sum(self.drafted),
            "num_accepted_tokens": sum(self.accepted),
            "num_declined_tokens": self.num_declined,
            "num_drafting_off": self.num_turned_off,
            "drafted_by_position": tuple(self.drafted),
            "accepted_by_position": tuple(self.accepted),
        }
