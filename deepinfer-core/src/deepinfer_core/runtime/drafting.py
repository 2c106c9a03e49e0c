"""`DeviceDrafting`: shows a drafter what each step computed and drew, and lets it guess.

Launches behind the sampling of a step and waits for nothing. Which token of a request was the last
to be kept is known to the device only, so rows and next tokens are tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from deepinfer_core.models.drafters.interface import Drafter, Drafts, DraftTarget, Draw
from deepinfer_core.models.interface import Model
from deepinfer_core.sampling.result import host_copy
from deepinfer_core.scheduling.plan import DraftedTokens, StepPlan
from deepinfer_core.staging import stage

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from deepinfer_core.runtime.batch import ForwardBatch
    from deepinfer_core.runtime.batch_builder import Step
    from deepinfer_core.runtime.token_pool import TokenPool
    from deepinfer_core.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class LaunchedDrafts:
    """Guesses on their way to the host."""

    num_to_draft: Mapping[int, int]
    token_ids: Tensor
    """[N, k] int32"""
    confidence: Tensor | None
    """[N, k] float32"""

    def read(self) -> dict[int, DraftedTokens]:
        """Plain values by sampled index, after the event behind the copies."""
        token_ids = self.token_ids.tolist()
        confidence = None if self.confidence is None else self.confidence.tolist()
        return {
            index: DraftedTokens(
                token_ids[row][:count], None if confidence is None else confidence[row][:count]
            )
            for row, (index, count) in enumerate(self.num_to_draft.items())
        }


class DeviceDrafting:
    """One drafter beside one target."""

    def __init__(self, drafter: Drafter, target: Model, sampler: Sampler) -> None:
        self.drafter = drafter
        self.has_failed = False
        """It raised something, and is not asked again."""
        self._target = target
        self._sampler = sampler

    def forward(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """The target's hidden states [T, C], and what the drafter reads of it [T, ...]."""
        if not self.drafter.reads_features:
            hidden_states = self._target.forward(batch)
            return hidden_states, hidden_states
        return cast(DraftTarget, self._target).forward_with_features(batch)

    def follow(
        self,
        plan: StepPlan,
        step: Step,
        features: Tensor,
        token_ids: Tensor | None,
        num_accepted: Tensor | None,
        token_pool: TokenPool,
    ) -> LaunchedDrafts | None:
        """Take a step in, and draft where the plan wants it.

        Args:
            features: what `forward` gave for it.
            token_ids: [L] int32 that it drew; None: it draws nothing.
            num_accepted: [S] int32 of the drafts of each sampled row; None: there were none.
        """
        observed = self._observe(plan, step, features, token_ids)
        if token_ids is None or not plan.num_to_draft:
            return None
        wanted, indices = step.wanted, [*plan.num_to_draft]
        first_rows = np.array([wanted.sources[wanted.starts[i]] for i in indices])
        (rows, sampled), _ = stage([first_rows, np.array(indices)], [], token_ids.device)
        if num_accepted is not None:
            rows = rows + num_accepted.index_select(0, sampled)
        # A draft's place is two behind the row it is drawn from: the drawn token is in between.
        positions = step.batch.positions.index_select(0, rows) + 2
        sampled_rows = [plan.sample_rows[i] for i in indices]
        draw = self._sampler.draft_draw(sampled_rows, positions, token_pool)
        drafts = self._draft(step.batch, observed, rows, max(plan.num_to_draft.values()), draw)
        if len(drafts.token_ids) != len(indices):
            raise ValueError(f"drafts of {len(drafts.token_ids)} rows, not of {len(indices)}")
        confidence = None if drafts.confidence is None else host_copy(drafts.confidence)
        return LaunchedDrafts(plan.num_to_draft, host_copy(drafts.token_ids), confidence)

    def give_up(self, error: Exception) -> None:
        """Go on without the drafter: whatever it does, no answer depends on it."""
        self.has_failed = True
        logger.warning(
            "the drafter %s failed, so decoding goes on without drafts: %s: %s",
            type(self.drafter).__name__,
            type(error).__name__,
            error,
        )

    def _observe(
        self, plan: StepPlan, step: Step, features: Tensor, token_ids: Tensor | None
    ) -> Tensor:
        """Show every token with the one behind it: the next of its chunk, or what is known of the
        one after, or what was drawn, which is the next of the chunk where a draft is kept."""
        lasts = np.array([*accumulate(plan.num_scheduled_tokens)]) - 1
        first_of = {source: place for place, source in reversed([*enumerate(step.wanted.sources)])}
        drawn = np.array([first_of[source] for source in dict.fromkeys(step.wanted.sources)])
        following = np.maximum(np.array(plan.following_token_ids, dtype=np.int32), 0)
        longs: Sequence[Any] = [lasts, drawn.astype(np.int64)]
        (ends, places), (known,) = stage(longs, [following], step.batch.positions.device)
        next_ids = step.batch.input_ids.roll(-1).index_copy_(0, ends, known)
        if token_ids is not None:
            next_ids.index_copy_(0, step.sources, token_ids.index_select(0, places))
        target = cast(DraftTarget, self._target)
        return self.drafter.observe(target, step.batch, features, next_ids)

    def _draft(
        self, batch: ForwardBatch, observed: Tensor, rows: Tensor, num_tokens: int, draw: Draw
    ) -> Drafts:
        target = cast(DraftTarget, self._target)
        return self.drafter.draft(target, batch, observed, rows, num_tokens, draw)
