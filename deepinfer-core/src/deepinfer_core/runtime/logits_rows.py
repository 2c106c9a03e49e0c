"""Which logits a step needs, and whose they are: one row for each token that is drawn.

A request that draws has one row, and one more for each of its drafts: behind each of them the
target draws too. Host integers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.sampling.result import HostTokens
from deepinfer_core.scheduling.plan import StepOutput, StepPlan, TokenLogprobs


class VerifyTable(NamedTuple):
    """Drafts of S sampled rows beside the tokens that were drawn at their positions."""

    places: NDArray[np.int64]
    """[S, K] logits row that draws at the position of each draft; void where there is none."""
    draft_ids: NDArray[np.int32]
    """[S, K], -1 where there is none."""
    owners: NDArray[np.int64]
    """[L] sampled row of each logits row."""
    depths: NDArray[np.int64]
    """[L] drafts before each logits row."""


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """The L logits rows of a step with S sampled rows."""

    rows: Sequence[int]
    """[L] row of each."""
    positions: Sequence[int]
    """[L] absolute position of the token that each draws."""
    sources: Sequence[int]
    """[L] index in the packed step of the token that gives the logits."""
    starts: Sequence[int]
    """[S + 1] where the logits rows of each sampled row begin, and L."""
    drafts: Sequence[tuple[int, ...]] = ()
    """[L] the drafts that stand before each, whether they are accepted or not; empty if the step
    has none."""

    @property
    def drafted(self) -> list[int]:
        """Indices of all drafts in the packed step."""
        pairs = zip(self.sources, self.drafts, strict=True) if self.drafts else ()
        return [source for source, before in pairs if before]

    def verify_table(self) -> VerifyTable:
        """What is to be compared, for a step with drafts."""
        starts, num_rows = np.array(self.starts), len(self.rows)
        counts = np.diff(starts)
        owners = np.arange(len(counts)).repeat(counts)
        depths = np.arange(num_rows) - starts[owners]
        most = int(counts.max()) - 1
        places = np.minimum(starts[:-1, None] + np.arange(most), num_rows - 1)
        draft_ids = np.full((len(counts), most), -1, dtype=np.int32)
        for index, end in enumerate(self.starts[1:]):
            own = self.drafts[end - 1]  # before the last row stand all
            draft_ids[index, : len(own)] = own
        return VerifyTable(places, draft_ids, owners, depths)

    def outputs(self, tokens: HostTokens, num_accepted: Sequence[int]) -> StepOutput:
        """What each sampled row drew: up to what was drawn behind its last accepted draft.

        Args:
            num_accepted: [S]; empty if the step has no drafts.
        """
        if not self.drafts and not tokens.errors:
            entries = tokens.logprobs
            singles = None if entries is None else [None if e is None else [e] for e in entries]
            return StepOutput(list(zip(tokens.token_ids)), singles)
        token_ids: list[Sequence[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        errors: dict[int, str] = {}
        for index, start in enumerate(self.starts[:-1]):
            end = start + 1 + (num_accepted[index] if num_accepted else 0)
            failed = [row for row in range(start, end) if row in tokens.errors]
            if failed:
                errors[index], end = tokens.errors[failed[0]], failed[0]
            token_ids.append(tokens.token_ids[start:end])
            entries = tokens.logprobs
            own = [] if entries is None else [e for e in entries[start:end] if e is not None]
            logprobs.append(own or None)
        has_logprobs = tokens.logprobs is not None
        return StepOutput(token_ids, logprobs if has_logprobs else None, errors=errors)


def logits_rows(plan: StepPlan) -> LogitsRows:
    """The logits rows of a plan, in order of its sampled rows."""
    ends = [*accumulate(plan.num_scheduled_tokens)]
    num_sampled = len(plan.sample_rows)
    if not plan.num_drafts:
        sources = [ends[source] - 1 for source in plan.sample_sources]
        return LogitsRows(plan.sample_rows, plan.sample_positions, sources, range(num_sampled + 1))
    rows: list[int] = []
    positions: list[int] = []
    sources = []
    drafts: list[tuple[int, ...]] = []
    starts = [0]
    for index, (row, position, source) in enumerate(
        zip(plan.sample_rows, plan.sample_positions, plan.sample_sources, strict=True)
    ):
        count = plan.num_drafts.get(index, 0)
        end = ends[source]
        own = plan.token_ids[end - count : end] if count else []
        rows += [row] * (count + 1)
        positions += range(position, position + count + 1)
        sources += range(end - count - 1, end)
        drafts += [tuple(own[:before]) for before in range(count + 1)]
        starts.append(len(rows))
    return LogitsRows(rows, positions, sources, starts, drafts)
