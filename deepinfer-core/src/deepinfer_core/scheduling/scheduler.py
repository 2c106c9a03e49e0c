"""The scheduler: turns requests into step plans, and step outputs into tokens of requests.

The face of this package. Owns the order of steps in flight; who is chosen is the planner's, who is
where the roster's, what a request gets `commit.py`'s. Never sees a tensor; used from one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from deepinfer_core.errors import EngineError, RequestError
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.scheduling.budget import TokenBudget
from deepinfer_core.scheduling.commit import commit_prompt_logprobs, commit_tokens, cut_outputs
from deepinfer_core.scheduling.drafting import DraftSource
from deepinfer_core.scheduling.entry import Place
from deepinfer_core.scheduling.plan import StepOutput, StepPlan
from deepinfer_core.scheduling.planner import Planner
from deepinfer_core.scheduling.policy import get_policy
from deepinfer_core.scheduling.roster import Roster
from deepinfer_core.scheduling.step import Step


@dataclass(slots=True)
class StepResult:
    """What a commit changed."""

    updated: list[Request] = field(default_factory=list)
    """Got tokens."""
    finished: list[Request] = field(default_factory=list)
    """Ended since the last report, for whatever reason; each request appears here once."""


class Scheduler:
    """Decides what each step computes.

    Args:
        kv: gives blocks; used by nobody else.
        max_num_seqs: rows, which bound the requests that have started.
        max_num_batched_tokens: budget of one step.
        policy: `fcfs` or `priority`.
        history_len: tokens before each chunk whose ids the model wants.
        drafts: where guesses at the next tokens come from; None: nobody makes any.

    Raises:
        ConfigError: the policy is unknown.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: str = "fcfs",
        history_len: int = 0,
        drafts: DraftSource | None = None,
    ) -> None:
        self._kv = kv
        chosen = get_policy(policy)
        self._roster = Roster(kv, max_num_seqs=max_num_seqs, policy=chosen)
        self._budget = TokenBudget(max_num_batched_tokens)
        self._planner = Planner(kv, self._roster, chosen, self._budget)
        self._in_flight: deque[Step] = deque()
        self._next_step_id = 0
        self._history_len = history_len
        self._drafts = drafts
        if drafts is not None:
            self._planner.num_lookahead_tokens = drafts.num_lookahead_tokens
        self.max_tokens_of_pool = self._planner.max_tokens_of_pool
        """Longest request that can be computed; refuse longer ones early."""

    def add(self, request: Request, *, is_held: bool = False) -> None:
        """Let a request wait; with its `followers`, which fork from it when its prompt is done.

        Args:
            is_held: it is not to start before `release`, and holds up nobody.

        Raises:
            RequestError: an empty prompt, no room for output, or added before.
        """
        self._roster.add(request, is_held=is_held)

    def release(self, request: Request) -> None:
        """Let a held request wait like others. Does nothing if it is not held (any more)."""
        entry = self._roster.entries.get(request.request_id)
        if entry is not None:
            self._roster.release(entry)

    def abort(
        self,
        request: Request,
        *,
        finish_reason: FinishReason = "abort",
        error: RequestError | None = None,
    ) -> None:
        """End a request wherever it is, its followers excluded. Does nothing if it has ended."""
        entry = self._roster.entries.get(request.request_id)
        if entry is not None and not request.is_finished:
            self._roster.end(entry, finish_reason, error=error)

    def finish(self, request: Request, *, num_output_tokens: int, stop_reason: str) -> None:
        """End a request at a stop string that its first `num_output_tokens` output ids complete.

        Ids and log-probabilities are cut there. The earliest event wins: a limit or stop token
        that ended the request meanwhile gives way to a stop string before it (a limit also to one
        at the same token), and so does a draw that failed behind it; an abort does not.
        """
        num_cut = request.num_output_tokens - num_output_tokens
        if request.is_finished:
            has_failed = request.finish_reason == "error" and request.error is not None
            is_later = request.finish_reason == "length" or has_failed
            if is_later or (request.finish_reason == "stop" and num_cut):
                request.finish_reason, request.stop_reason = "stop", stop_reason
                request.error = None
                cut_outputs(request, num_output_tokens)
            return
        cut_outputs(request, num_output_tokens)
        self._roster.end(self._roster.entries[request.request_id], "stop", stop_reason=stop_reason)

    def preempt(self, request: Request) -> None:
        """Send a request back to waiting, for tests and `verify`; does nothing unless it runs."""
        entry = self._roster.entries.get(request.request_id)
        if entry is not None and entry.place is Place.RUNNING:
            self._roster.preempt(entry)

    def preempt_all(self) -> None:
        """Send every running request back to waiting: nothing is lost but computed tokens."""
        for entry in reversed(list(self._roster.running)):
            self._roster.preempt(entry)

    def reset_prefix_cache(self) -> None:
        """Make nothing hittable. Requests go on with what they hold."""
        self._kv.reset_prefix_cache()

    @property
    def has_unfinished(self) -> bool:
        """Something is left to schedule, to commit, or to report (`take_finished`)."""
        return bool(self._roster.entries) or self._roster.has_unreported

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        """Not finished and not running: new, preempted, or attached to a leader."""
        roster = self._roster
        return len(roster.entries) - len(roster.running) - roster.num_leaving

    @property
    def num_preemptions(self) -> int:
        """Since the start."""
        return self._roster.num_preemptions

    def draft_metrics(self) -> dict[str, Any]:
        """What has become of drafts, under the names of `EngineMetrics`; empty without them."""
        return {} if self._drafts is None else self._drafts.stats.to_dict()

    def take_finished(self) -> list[Request]:
        """Requests that ended since the last report, for when there is no step to commit."""
        return self._roster.take_finished()

    def check_integrity(self) -> None:
        """Check blocks, rows and counters.

        Raises:
            IntegrityError: with the arithmetic.
        """
        self._kv.check_integrity()
        self._roster.check_integrity()

    def schedule(self) -> StepPlan | None:
        """Plan the next step, counting steps in flight as done.

        Returns:
            None if there is nothing to launch: everything waits for a commit, or has ended (a
            request that outgrew the pool ends here; see `take_finished`).
        """
        step = self._planner.plan(self._next_step_id, is_idle=not self._in_flight)
        if step.is_empty:
            return None
        if self._drafts is not None:
            self._drafts.prepare(step)
        self._in_flight.append(step)
        self._next_step_id += 1
        return step.complete(
            row_frees=self._roster.take_row_frees(),
            block_copies=self._kv.take_block_copies(),
            history_len=self._history_len,
        )

    def roll_back(self, plan: StepPlan, reason: str) -> None:
        """Take back the newest step, for which memory ran out, and plan smaller ones for a while.

        Its requests go on from where they were before it; those that had just forked start anew.
        A step of one token cannot shrink: its request ends.

        Args:
            reason: the allocator's words, for that request's error.

        Raises:
            EngineError: another plan is the newest.
        """
        if not self._in_flight or self._in_flight[-1].plan is not plan:
            raise EngineError(f"step {plan.step_id} is not the newest step in flight")
        step = self._in_flight.pop()
        roster, left = self._roster, self._in_flight
        for entry in step.undo(left[-1].plan.step_id if left else roster.settled_step_id):
            roster.preempt(entry)
        roster.settle()
        if len(plan.token_ids) > 1 or len(plan.sample_rows) > 1:
            self._budget.shrink(len(plan.token_ids))
            return
        self._planner.fail_too_large(step.placed[0], reason)
        self._budget.restore()

    def commit(self, plan: StepPlan, output: StepOutput) -> StepResult:
        """Take over what a settled step produced. Steps settle in the order of their plans.

        Args:
            plan: the oldest plan that is not committed.
            output: parallel to `plan.sample_rows`.

        Raises:
            EngineError: another plan is the oldest, or the output has other sizes.
        """
        if not self._in_flight or self._in_flight[0].plan is not plan:
            raise EngineError(f"step {plan.step_id} is not the oldest step in flight")
        if len(output.token_ids) != len(plan.sample_rows):
            raise EngineError(
                f"step {plan.step_id} sampled {len(plan.sample_rows)} rows, "
                f"the output has {len(output.token_ids)}"
            )
        step = self._in_flight.popleft()
        self._budget.note_success()
        roster, kv = self._roster, self._kv
        roster.settled_step_id = plan.step_id
        if plan.prompt_logprobs:
            commit_prompt_logprobs(step, output)
        for entry, num_settled in step.to_register:
            kv.register(entry.request, num_settled)
        updated = commit_tokens(step, output, roster, kv)
        if self._drafts is not None:
            self._drafts.follow(step, output)
        roster.settle()
        return StepResult(updated, roster.take_finished())
