"""Where requests get their next drafts from when a step settles, and what is learnt from the last.

Who guesses is a proposer's or a drafter's business, how good a request's guesses are is
`Acceptance`'s, how many are worth their time `speculative/budget.py`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.scheduling.entry import Entry
from deepinfer_core.scheduling.plan import UNKNOWN_TOKEN_ID, StepOutput
from deepinfer_core.scheduling.step import Step
from deepinfer_core.speculative.acceptance import Acceptance
from deepinfer_core.speculative.budget import DraftCosts, StepCosts, Survivals, admit, best_depth
from deepinfer_core.speculative.drafting import Drafting, known_ids
from deepinfer_core.speculative.stats import DraftStats

MIN_TRIES = 6
"""Drafts of a request that a drafter on the device may make before it can be turned off."""


class DraftSource(ABC):
    """Gives drafts to requests, and counts what becomes of them.

    Args:
        num_drafts: most tokens of one draft.
        costs: of a step, to compute no draft that costs more than it is likely to give; None:
            compute all.
    """

    num_lookahead_tokens = 0
    """Positions behind the drafts of a request that a drafter writes to while it drafts."""

    def __init__(self, *, num_drafts: int, costs: StepCosts | None) -> None:
        self.stats = DraftStats()
        self.num_drafts = num_drafts
        self._costs = costs

    def prepare(self, step: Step) -> None:
        """A step is about to be launched: say what is to be drafted behind it."""
        return  # nothing, if not on the device

    def follow(self, step: Step, output: StepOutput) -> None:
        """A step has settled and its tokens are the requests': give out the next drafts."""
        for index, num_drafts in step.plan.num_drafts.items():
            entry, num_accepted = step.sampled[index], max(0, len(output.token_ids[index]) - 1)
            for stats in self._stats_of(entry):
                stats.record(num_drafts, num_accepted)
            if entry.acceptance is not None:
                entry.acceptance.learn(num_drafts, num_accepted)
        entries = []
        for index, entry in enumerate(step.sampled):
            if entry.request.finish_reason is None:
                entry.draft_token_ids = self._drafts_of(entry, index, output)
                entries.append(entry)
                for stats in self._stats_of(entry) if entry.draft_token_ids else ():
                    stats.num_proposed += len(entry.draft_token_ids)
        if self._costs is not None and any(entry.draft_token_ids for entry in entries):
            self._decline(entries, self._admit(entries, self._costs))

    @abstractmethod
    def _drafts_of(self, entry: Entry, index: int, output: StepOutput) -> Sequence[int]:
        """The next drafts of a request that drew as number `index` of its step."""

    def _admit(self, entries: Sequence[Entry], costs: StepCosts) -> list[int]:
        """How many of its drafts to compute for each."""
        return admit([_expected(entry) for entry in entries], costs)

    def _decline(self, entries: Sequence[Entry], counts: Sequence[int]) -> None:
        for entry, count in zip(entries, counts, strict=True):
            num_declined = len(entry.draft_token_ids) - count
            if num_declined:
                entry.draft_token_ids = entry.draft_token_ids[:count]
                for stats in self._stats_of(entry):
                    stats.num_declined += num_declined
                if not count and entry.acceptance is not None:
                    entry.acceptance.relax()

    def _stats_of(self, entry: Entry) -> tuple[DraftStats, DraftStats]:
        """The engine's, and the request's."""
        request = entry.request
        if request.drafts is None:
            request.drafts = DraftStats()
        return self.stats, request.drafts


class HostDrafts(DraftSource):
    """Asks a proposer on the host."""

    def __init__(
        self, proposer: Proposer, *, num_drafts: int, vocab_size: int, costs: StepCosts | None
    ) -> None:
        super().__init__(num_drafts=num_drafts, costs=costs)
        self._proposer = proposer
        self._vocab_size = vocab_size

    def _drafts_of(self, entry: Entry, index: int, output: StepOutput) -> Sequence[int]:
        request, drafting = entry.request, entry.acceptance
        if not isinstance(drafting, Drafting):
            entry.acceptance = drafting = Drafting(self._proposer, self._vocab_size)
        return drafting.propose(request.prompt_token_ids, request.output_token_ids, self.num_drafts)


class DeviceDrafts(DraftSource):
    """Takes what a drafter on the device guessed behind a step, and says how far it is to guess.

    The total of a step follows from estimates of two steps ago, and goes to the drafts that are
    likeliest to survive now (arXiv:2607.05147, section 5.2).

    Args:
        draft_costs: of the drafter; with it requests whose drafts are not worth it are turned off.
    """

    def __init__(
        self,
        *,
        num_drafts: int,
        vocab_size: int,
        costs: StepCosts | None,
        draft_costs: DraftCosts | None,
    ) -> None:
        super().__init__(num_drafts=num_drafts, costs=costs)
        self.num_lookahead_tokens = num_drafts
        self._vocab_size = vocab_size
        self._draft_costs = draft_costs

    def prepare(self, step: Step) -> None:
        entries, plan = step.placed, step.plan
        for entry in entries:
            if entry.acceptance is None:
                entry.acceptance = Acceptance()
        # Who forks has no tokens in this step to go on from.
        sampled = zip(step.sampled, plan.sample_sources, strict=True)
        own = [(i, entry) for i, (entry, source) in enumerate(sampled) if entry is entries[source]]
        num_requests = len(step.sampled)
        for index, entry in own:
            num_left = entry.max_total_tokens - entry.num_tokens - 1
            depth = min(self._depth(entry, num_requests), num_left)
            if depth > 0:
                plan.num_to_draft[index] = depth
        if all(entry.acceptance is None or entry.acceptance.is_off for entry in entries):
            return
        drawing = {plan.sample_sources[index] for index, _ in own}
        plan.following_token_ids = [
            UNKNOWN_TOKEN_ID if place in drawing else _following(entry)
            for place, entry in enumerate(entries)
        ]

    def _depth(self, entry: Entry, num_requests: int) -> int:
        """How far to draft for a request, in a step of so many; turns it off where that is 0."""
        acceptance = entry.acceptance
        if self._costs is None or self._draft_costs is None or acceptance is None:
            return self.num_drafts
        if acceptance.is_off:
            return 0
        survivals = acceptance.survivals(self.num_drafts, is_made=False)
        depth = best_depth(survivals, num_requests, self._costs, self._draft_costs) or 1
        if acceptance.num_tries < MIN_TRIES:
            return depth
        # What drafts gave and took, those included that were not worth computing.
        num_tokens = round(num_requests * (1 + acceptance.size))
        seconds = self._costs.of(num_tokens) + self._draft_costs.of(depth)
        if (1 + acceptance.gain) * self._costs.of(num_requests) >= seconds:
            return depth
        acceptance.is_off = True
        for stats in self._stats_of(entry):
            stats.num_turned_off += 1
        return 0

    def _drafts_of(self, entry: Entry, index: int, output: StepOutput) -> Sequence[int]:
        drafts = output.drafts.get(index)
        if drafts is None:
            return ()
        if entry.acceptance is not None:
            entry.acceptance.confidence = drafts.confidence
        return known_ids(drafts.token_ids, self._vocab_size)

    def _admit(self, entries: Sequence[Entry], costs: StepCosts) -> list[int]:
        survivals = [_expected(entry) for entry in entries]
        return admit(survivals, costs, earlier=self._earlier(entries, survivals))

    def _earlier(self, entries: Sequence[Entry], survivals: Survivals) -> Survivals:
        return [
            row if entry.acceptance is None or not row else entry.acceptance.earlier(row)
            for entry, row in zip(entries, survivals, strict=True)
        ]


def _expected(entry: Entry) -> Sequence[float]:
    """How likely each draft is to survive."""
    if entry.acceptance is None:
        return ()
    return entry.acceptance.survivals(len(entry.draft_token_ids))


def _following(entry: Entry) -> int:
    """The token behind those of a request that are computed."""
    start = entry.request.num_computed_tokens
    return (*entry.request.known_token_ids(start, start + 1), UNKNOWN_TOKEN_ID)[0]
