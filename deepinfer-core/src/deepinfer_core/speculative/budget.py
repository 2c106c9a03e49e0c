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


def admit(survivals: Sequence[Sequence[float]], costs: StepCosts) -> list[int]:
    """Choose how many drafts of each request to compute.

    Maximises expected tokens per second, over all numbers of drafts: those most likely to survive
    come first.

    Args:
        survivals: for each request of the step, how likely each of its drafts is to be accepted
            with all before it; falling.

    Returns:
        One count per request, at most the number of its drafts.
    """
    num_requests = len(survivals)
    ranked = sorted(
        ((survival, index) for index, row in enumerate(survivals) for survival in row),
        key=lambda pair: (-pair[0], pair[1]),
    )
    expected = float(num_requests)
    best, num_admitted = expected / costs.of(num_requests), 0
    for count, (survival, _) in enumerate(ranked, start=1):
        expected += survival
        rate = expected / costs.of(num_requests + count)
        if rate > best:
            best, num_admitted = rate, count
    counts = [0] * num_requests
    for _, index in ranked[:num_admitted]:
        counts[index] += 1
    return counts
