"""One step: a plan under construction, then in flight, and the entries behind its lists.

Owns how requests become columns of a plan, and counts what is planned as done. Knows neither who
is chosen nor who holds which blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.request import Request
from deepinfer_core.scheduling.entry import Entry, Place
from deepinfer_core.scheduling.plan import (
    NO_TOKEN_ID,
    UNKNOWN_TOKEN_ID,
    BlockUpdate,
    PromptLogprobsPlan,
    RowStart,
    StepPlan,
)


class Step:
    """The requests of one step, in the order in which they were placed."""

    __slots__ = ("budget", "joined", "placed", "plan", "preempted", "sampled", "to_register")

    def __init__(self, step_id: int, budget: int) -> None:
        self.plan = StepPlan(step_id)
        self.budget = budget
        """Tokens that may still be placed."""
        self.joined: list[Entry] = []
        """Admitted or forked in this step; they join the running ones when it is complete."""
        self.preempted = False
        """Blocks ran out, so nobody new is admitted."""
        self.to_register: list[tuple[Entry, int]] = []
        """Who may have filled a block, and how many of its tokens this step settles."""
        self.sampled: list[Entry] = []
        """Parallel to `plan.sample_rows`."""
        self.placed: list[Entry] = []
        """Parallel to `plan.rows`."""

    @property
    def is_empty(self) -> bool:
        return not self.placed

    def place_next(self, entry: Entry) -> None:
        """`place` and `sample` for a request that lacks one token and no block.

        That is nearly every request of nearly every step, and most of what the scheduler costs.
        """
        plan, request, position = self.plan, entry.request, entry.num_tokens
        if request.num_in_flight_tokens:
            plan.token_ids.append(UNKNOWN_TOKEN_ID)
        else:
            plan.token_ids.append(request.output_token_ids[-1])
        plan.sample_sources.append(len(self.placed))
        self.placed.append(entry)
        self.sampled.append(entry)
        plan.num_computed_tokens.append(position - 1)
        plan.num_scheduled_tokens.append(1)
        plan.sample_positions.append(position)
        self.budget -= 1
        request.num_computed_tokens = position
        request.num_in_flight_tokens += 1
        entry.num_tokens = position + 1
        entry.last_step_id = plan.step_id

    def place(
        self,
        entry: Entry,
        num_tokens: int,
        updates: list[BlockUpdate],
        drafts: Sequence[int] = (),
    ) -> None:
        """Compute a request's next tokens, and draw one if that reaches its last.

        Args:
            drafts: guesses behind its last token, which the next tokens reach: it draws behind
                each of them too.
        """
        plan, request = self.plan, entry.request
        start = request.num_computed_tokens
        end = start + num_tokens
        token_ids = request.known_token_ids(start, end)
        plan.token_ids += token_ids
        plan.token_ids += [UNKNOWN_TOKEN_ID] * (num_tokens - len(token_ids))
        plan.token_ids += drafts
        plan.block_updates += updates
        if updates or num_tokens > 1:
            # A decode fills a block in the step before the one that needs another block.
            self.to_register.append((entry, end))
        if start < entry.prompt_logprobs_end:
            self._plan_prompt_logprobs(entry, start, end)
        if start < request.num_hit_tokens:
            plan.replays.append((len(self.placed), request.num_hit_tokens))
        self.placed.append(entry)
        plan.num_computed_tokens.append(start)
        plan.num_scheduled_tokens.append(num_tokens + len(drafts))
        self.budget -= num_tokens + len(drafts)
        request.num_computed_tokens = end + len(drafts)
        entry.last_step_id = plan.step_id
        if end == entry.num_tokens:
            self.sample(entry, len(drafts))

    def sample(self, entry: Entry, num_drafts: int = 0) -> None:
        """Draw a request's next token from the logits of whoever was placed last.

        Drafts count as if all were accepted, until the step settles.
        """
        plan = self.plan
        if num_drafts:
            plan.num_drafts[len(self.sampled)] = num_drafts
        self.sampled.append(entry)
        plan.sample_sources.append(len(self.placed) - 1)
        plan.sample_positions.append(entry.num_tokens)
        entry.num_tokens += 1 + num_drafts
        entry.request.num_in_flight_tokens += 1 + num_drafts
        entry.last_step_id = plan.step_id

    def undo(self, newest_step_id: int) -> list[Entry]:
        """Count nothing of this step as done, since it could not be computed.

        Args:
            newest_step_id: of the steps that are left, in flight or settled.

        Returns:
            Those that run since they forked in it: what they share was never computed.
        """
        plan = self.plan
        for index, entry in enumerate(self.sampled):
            if not entry.request.is_finished:
                num_drawn = 1 + plan.num_drafts.get(index, 0)
                entry.num_tokens -= num_drawn
                entry.request.num_in_flight_tokens -= num_drawn
        for entry, start in zip(self.placed, plan.num_computed_tokens, strict=True):
            if entry.place is Place.RUNNING:
                entry.request.num_computed_tokens, entry.num_tokens_ready = start, 0
        involved = dict.fromkeys((*self.placed, *self.sampled))
        for entry in involved:
            entry.last_step_id = newest_step_id
        forked = [*involved][len(self.placed) :]
        return [entry for entry in forked if entry.place is Place.RUNNING]

    def start_row(self, request: Request) -> None:
        """Tell the runner about a request that has got its row."""
        self.plan.row_starts.append(
            RowStart(
                row=request.row,
                params=request.params,
                seed=request.seed,
                sample_index=request.sample_index,
                prompt_token_ids=request.prompt_token_ids,
                stop_token_ids=request.stop_token_ids,
                bad_token_ids=request.bad_token_ids,
                output_token_ids=tuple(request.output_token_ids),
                images=request.images,
            )
        )

    def complete(
        self,
        *,
        row_frees: list[int],
        block_copies: list[tuple[int, int]],
        history_len: int = 0,
    ) -> StepPlan:
        """Fill in the rest of the plan and return it; nothing can be placed any more."""
        plan = self.plan
        plan.request_ids = [entry.request_id for entry in self.placed]
        plan.rows = [entry.request.row for entry in self.placed]
        plan.sample_request_ids = [entry.request_id for entry in self.sampled]
        plan.sample_rows = [entry.request.row for entry in self.sampled]
        plan.row_frees, plan.block_copies = row_frees, block_copies
        if history_len:
            starts = zip(self.placed, plan.num_computed_tokens, strict=True)
            plan.history_token_ids = [
                token_id
                for entry, start in starts
                for token_id in _history(entry.request, start, history_len)
            ]
        return plan

    def prompt_logprobs_targets(self) -> list[tuple[Request, int]]:
        """Parallel to `plan.prompt_logprobs`: for whom, and the first position computed."""
        plan = self.plan
        indices = [wanted.index for wanted in plan.prompt_logprobs]
        return [(self.placed[i].request, plan.num_computed_tokens[i]) for i in indices]

    def _plan_prompt_logprobs(self, entry: Entry, start: int, end: int) -> None:
        request = entry.request
        end = min(end, entry.prompt_logprobs_end)
        if end <= len(request.prompt_logprobs):
            return  # delivered before a preemption
        assert request.params.prompt_logprobs is not None
        self.plan.prompt_logprobs.append(
            PromptLogprobsPlan(
                index=len(self.placed),
                num_logprobs=request.params.prompt_logprobs,
                target_token_ids=request.prompt_token_ids[start + 1 : end + 1],
            )
        )


def _history(request: Request, start: int, length: int) -> list[int]:
    """Ids at positions start - length .. start - 1."""
    first = max(0, start - length)
    known = request.known_token_ids(first, start)
    missing = start - first - len(known)
    return [NO_TOKEN_ID] * (length - start + first) + known + [UNKNOWN_TOKEN_ID] * missing
