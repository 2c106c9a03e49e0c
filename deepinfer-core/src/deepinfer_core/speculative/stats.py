"""What has become of drafts so far, in numbers."""

from __future__ import annotations

from typing import Any


class DraftStats:
    """Counts since the start."""

    def __init__(self, max_drafts: int) -> None:
        self.num_verified = 0
        """Times that a request drew behind drafts."""
        self.drafted = [0] * max_drafts
        """By position in a draft: computed."""
        self.accepted = [0] * max_drafts
        """By position: accepted."""
        self.num_declined = 0
        """Guesses that were not worth computing."""

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """One request drew behind drafts."""
        self.num_verified += 1
        for position in range(num_drafts):
            self.drafted[position] += 1
        for position in range(num_accepted):
            self.accepted[position] += 1

    def to_dict(self) -> dict[str, Any]:
        """Under the names of `EngineMetrics`."""
        return {
            "num_draft_steps": self.num_verified,
            "num_draft_tokens": sum(self.drafted),
            "num_accepted_tokens": sum(self.accepted),
            "num_declined_tokens": self.num_declined,
            "drafted_by_position": tuple(self.drafted),
            "accepted_by_position": tuple(self.accepted),
        }
