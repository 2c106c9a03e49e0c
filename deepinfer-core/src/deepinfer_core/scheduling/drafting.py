"""`DraftSource`: gives requests their next drafts when a step settles, and learns from the last.

Who guesses is a proposer's business, how good a request's guesses are `Drafting`'s, how many are
worth their time `budget.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.scheduling.entry import Entry
from deepinfer_core.scheduling.plan import StepOutput
from deepinfer_core.scheduling.step import Step
from deepinfer_core.speculative.budget import StepCosts, admit
from deepinfer_core.speculative.drafting import Drafting
from deepinfer_core.speculative.stats import DraftStats


class DraftSource:
    """Asks a proposer on the host.

    Args:
        num_drafts: most tokens of one draft.
        costs: of a step, to compute no draft that costs more than it is likely to give; None:
            compute all.
    """

    def __init__(
        self,
        proposer: Proposer,
        *,
        num_drafts: int,
        vocab_size: int,
        costs: StepCosts | None = None,
    ) -> None:
        self.stats = DraftStats(num_drafts)
        self._proposer = proposer
        self._num_drafts = num_drafts
        self._vocab_size = vocab_size
        self._costs = costs

    def follow(self, step: Step, output: StepOutput) -> None:
        """A step has settled and its tokens are the requests': draft behind them."""
        for index, num_drafts in step.plan.num_drafts.items():
            num_accepted = max(0, len(output.token_ids[index]) - 1)
            self.stats.record(num_drafts, num_accepted)
            if (drafting := step.sampled[index].drafting) is not None:
                drafting.learn(num_drafts, num_accepted)
        entries = [entry for entry in step.sampled if entry.request.finish_reason is None]
        for entry in entries:
            entry.draft_token_ids = self._propose(entry)
        if self._costs is not None:
            self._decline(entries, self._costs)

    def _propose(self, entry: Entry) -> Sequence[int]:
        request = entry.request
        if entry.drafting is None:
            entry.drafting = Drafting(self._proposer, self._vocab_size)
        return entry.drafting.propose(
            request.prompt_token_ids, request.output_token_ids, self._num_drafts
        )

    def _decline(self, entries: Sequence[Entry], costs: StepCosts) -> None:
        """Shorten drafts to what is worth computing in a step of these requests."""
        survivals = [
            entry.drafting.survivals(len(entry.draft_token_ids)) if entry.drafting else ()
            for entry in entries
        ]
        if not any(survivals):
            return
        for entry, count in zip(entries, admit(survivals, costs), strict=True):
            num_declined = len(entry.draft_token_ids) - count
            if num_declined and entry.drafting is not None:
                self.stats.num_declined += num_declined
                entry.draft_token_ids = entry.draft_token_ids[:count]
                if not count:
                    entry.drafting.relax()
