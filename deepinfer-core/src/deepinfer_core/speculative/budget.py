"""How many drafts a step should compute: those that are likely to give more than they cost.

After DeepSeek-AI 2026, arXiv:2607.05147, algorithm 1. Verification is exact, so any choice gives
the same tokens; this one is about time alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step by the number of its tokens: measured points, straight lines between."""

    num_tokens: tuple[int, ...]
    """Ascending; at least one."""
    seconds: tuple[float, ...]
    """Above 0."""

    def of(self, num_tokens: int) -> float:
        """Of any number of tokens; beyond the last point the last line goes on."""
        counts, seconds = self.num_tokens, self.seconds
        if len(counts) == 1:
            return seconds[0]
        right = min(max(bisect_right(counts, num_tokens), 1), len(counts) - 1)
        span = counts[right] - counts[right - 1]
        slope = (seconds[right] - seconds[right - 1]) / span
        return max(seconds[right - 1] + slope * (num_tokens - counts[right - 1]), seconds[0])


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds that a drafter on the device adds to a step."""

    observe_s: float
    """To take the step in, whether it drafts or not."""
    first_s: float
    """For the first draft."""
    next_s: float
    """For each further one."""

    def of(self, num_drafts: int) -> float:
        """To take the step in and draft so many tokens behind it."""
        drafting_s = self.first_s + (num_drafts - 1) * self.next_s if num_drafts else 0.0
        return self.observe_s + drafting_s


Survivals = Sequence[Sequence[float]]
"""For each request of a step, how likely each of its drafts is to be accepted with all before it;
falling."""


def admit(survivals: Survivals, costs: StepCosts, *, earlier: Survivals | None = None) -> list[int]:
    """Choose how many drafts of each request to compute: those that are most likely to survive.

    Args:
        earlier: what the total follows from, where it must not depend on the present drafts.

    Returns:
        One count per request, at most the number of its drafts.
    """
    total = best_total(survivals if earlier is None else earlier, costs)
    counts = [0] * len(survivals)
    for _, index in _ranked(survivals)[:total]:
        counts[index] += 1
    return counts


def best_total(survivals: Survivals, costs: StepCosts) -> int:
    """How many drafts in all make expected tokens per second largest, over all numbers."""
    num_requests = len(survivals)
    expected = float(num_requests)
    best, total = expected / costs.of(num_requests), 0
    for count, (survival, _) in enumerate(_ranked(survivals), start=1):
        expected += survival
        rate = expected / costs.of(num_requests + count)
        if rate > best:
            best, total = rate, count
    return total


def best_depth(
    survivals: Sequence[float], num_requests: int, costs: StepCosts, draft_costs: DraftCosts
) -> int:
    """How many tokens to draft behind each of so many requests that are alike.

    Args:
        survivals: of each draft of one of them, as far as is known before it is made.

    Returns:
        0 where a step without a drafter gives more tokens per second than any with one.
    """
    best, depth = num_requests / costs.of(num_requests), 0
    expected = 1.0
    for count, survival in enumerate(survivals, start=1):
        expected += survival
        seconds = costs.of(num_requests * (1 + count)) + draft_costs.of(count)
        if num_requests * expected / seconds > best:
            best, depth = num_requests * expected / seconds, count
    return depth


def _ranked(survivals: Survivals) -> list[tuple[float, int]]:
    """(survival, request) of all drafts, the likeliest first; the first request first of equals."""
    pairs = ((survival, index) for index, row in enumerate(survivals) for survival in row)
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
