"""`Acceptance`: what has become of one request's drafts, and what that says of the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

PRIOR_ACCEPTED, PRIOR_REJECTED = 2.0, 1.0
"""What a request is believed to have seen before its first draft."""
MEMORY = 0.9
"""Weight of the past after each verified draft."""
RECOVERY = 0.98
"""Weight of what is known after each draft that was not worth a try: text changes."""
LAG = 2
"""Steps between a drafter's estimates and the totals that follow from them."""


class Acceptance:
    """Counts what was accepted and what was rejected, the latest most."""

    __slots__ = (
        "_earlier",
        "_gain",
        "_num_accepted",
        "_num_rejected",
        "_size",
        "_weight",
        "confidence",
        "is_off",
        "num_tries",
    )

    def __init__(self) -> None:
        self._num_accepted = self._num_rejected = 0.0
        self._earlier: deque[Sequence[float]] = deque(maxlen=LAG)
        self.confidence: Sequence[float] | None = None
        """What its drafter says of each token of the present draft; None: nothing."""
        self._gain = self._size = self._weight = 0.0
        self.num_tries = 0
        """Drafts that were made, worth computing or not."""
        self.is_off = False
        """Drafts are not worth their time for this request."""

    @property
    def share(self) -> float:
        """The estimated share of drafts that are accepted when those before them are."""
        accepted = self._num_accepted + PRIOR_ACCEPTED
        return accepted / (accepted + self._num_rejected + PRIOR_REJECTED)

    def survivals(self, num_drafts: int, *, is_made: bool = True) -> list[float]:
        """How likely each of so many drafts is to be accepted together with those before it.

        Args:
            is_made: the draft is there, and its drafter may have said how far to trust it.
        """
        if self.confidence is None or not is_made:
            return [self.share**depth for depth in range(1, num_drafts + 1)]
        shares = [min(max(share, 0.0), 1.0) for share in self.confidence[:num_drafts]]
        return [*accumulate(shares, mul)]

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """A step settled: so many drafts were accepted, and the next one, if any, was not."""
        self._try(num_drafts, num_accepted)
        self._num_accepted = MEMORY * self._num_accepted + num_accepted
        self._num_rejected = MEMORY * self._num_rejected + (num_accepted < num_drafts)

    def relax(self) -> None:
        """A draft was not worth a try."""
        self._try(0, 0)
        self._num_accepted *= RECOVERY
        self._num_rejected *= RECOVERY

    @property
    def gain(self) -> float:
        """Tokens accepted per draft that was made, of late."""
        return self._gain / max(self._weight, 1.0)

    @property
    def size(self) -> float:
        """Tokens computed per draft that was made, of late."""
        return self._size / max(self._weight, 1.0)

    def _try(self, num_drafts: int, num_accepted: int) -> None:
        self.num_tries += 1
        self._weight = MEMORY * self._weight + 1
        self._gain = MEMORY * self._gain + num_accepted
        self._size = MEMORY * self._size + num_drafts

    def earlier(self, survivals: Sequence[float]) -> Sequence[float]:
        """Survivals of `LAG` steps ago, as many as now; those of now are kept for later steps.

        A request without such a past counts as sure: totals then err to trying.
        """
        known = self._earlier[0] if len(self._earlier) == LAG else ()
        self._earlier.append(survivals)
        if not known:
            return [1.0] * len(survivals)
        missing = max(0, len(survivals) - len(known))
        return [*known[: len(survivals)], *[known[-1]] * missing]
