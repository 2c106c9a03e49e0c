"""`DraftSource`: gives requests their next drafts when a step settles.

Who guesses is a proposer's business, how good its guesses are `Drafting`'s. Knows no step plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.scheduling.entry import Entry, Place
from deepinfer_core.speculative.drafting import Drafting


class DraftSource:
    """Asks a proposer on the host.

    Args:
        num_drafts: most tokens of one draft.
    """

    def __init__(self, proposer: Proposer, *, num_drafts: int, vocab_size: int) -> None:
        self._proposer = proposer
        self._num_drafts = num_drafts
        self._vocab_size = vocab_size

    def draft(self, entries: Iterable[Entry]) -> None:
        """Give drafts to those that go on, behind the tokens that the host has now."""
        for entry in entries:
            if entry.place is not Place.GONE and not entry.request.is_finished:
                self._draft_one(entry)

    def _draft_one(self, entry: Entry) -> None:
        request = entry.request
        if entry.drafting is None:
            entry.drafting = Drafting(self._proposer, self._vocab_size)
        entry.draft_token_ids = entry.drafting.propose(
            request.prompt_token_ids, request.output_token_ids, self._num_drafts
        )
