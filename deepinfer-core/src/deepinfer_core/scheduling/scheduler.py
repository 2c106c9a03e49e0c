"""The scheduler: turns requests into step plans, and step outputs into tokens of requests.

There are no phases. Each request has `num_computed_tokens` behind `num_tokens`; a step hands out
tokens under one budget so that the first catches the second. `schedule` may run before the
previous step is committed: it counts the tokens in flight as if they were here.
Never sees a tensor; used from one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from deepinfer_core.errors import EngineError, RequestError
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.scheduling.commit import commit_prompt_logprobs, commit_tokens, cut_outputs
from deepinfer_core.scheduling.entry import Entry, Place
from deepinfer_core.scheduling.plan import BlockUpdate, StepOutput, StepPlan
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
    ) -> None:
        self._kv = kv
        self._policy = get_policy(policy)
        self._roster = Roster(kv, max_num_seqs=max_num_seqs, policy=self._policy)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._in_flight: deque[Step] = deque()
        self._next_step_id = 0
        self.max_tokens_of_pool = kv.max_tokens_of_pool
        """Longest request that can be computed; refuse longer ones early."""

    # ---- what comes and goes

    def add(self, request: Request) -> None:
        """Let a request wait; with its `followers`, which fork from it when its prompt is done.

        Raises:
            RequestError: an empty prompt, no room for output, or added before.
        """
        self._roster.add(request)

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
        at the same token); an abort or error does not.
        """
        num_cut = request.num_output_tokens - num_output_tokens
        if request.is_finished:
            if request.finish_reason == "length" or (request.finish_reason == "stop" and num_cut):
                request.finish_reason, request.stop_reason = "stop", stop_reason
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

    # ---- scheduling

    def schedule(self) -> StepPlan | None:
        """Plan the next step, counting steps in flight as done.

        Returns:
            None if there is nothing to launch: everything waits for a commit, or has ended (a
            request that outgrew the pool ends here; see `take_finished`).
        """
        step = Step(self._next_step_id, self._max_num_batched_tokens)
        self._admit_urgent(step)
        self._schedule_running(step)
        if not step.preempted:
            while step.budget > 0 and self._admit_next(step, step.budget):
                pass
        if step.is_empty:
            return None
        self._roster.join(step.joined)
        self._in_flight.append(step)
        self._next_step_id += 1
        return step.complete(
            row_frees=self._roster.take_row_frees(), block_copies=self._kv.take_block_copies()
        )

    def _schedule_running(self, step: Step) -> None:
        running, allocate = self._roster.running, self._kv.allocate
        for index, entry in enumerate(running):  # whoever is preempted leaves behind `index`
            if step.budget <= 0:
                break
            if entry.num_tokens >= entry.max_total_tokens:
                continue  # its last token is in flight
            request = entry.request
            num_tokens = entry.num_tokens - request.num_computed_tokens
            if num_tokens > 1:
                num_later = len(running) - index - 1
                num_tokens = max(1, min(num_tokens, step.budget - num_later))
            updates = allocate(request, request.num_computed_tokens + num_tokens)
            if updates is None:
                num_tokens, updates = self._make_room(step, entry, num_tokens)
                if updates is None:
                    continue
            step.place(entry, num_tokens, updates)
            if request.followers and request.num_in_flight_tokens:
                self._fork_followers(step, request)

    def _make_room(
        self, step: Step, entry: Entry, num_tokens: int
    ) -> tuple[int, list[BlockUpdate] | None]:
        """Shrink the chunk, then preempt from the end of policy order, the asker included."""
        roster = self._roster
        while True:
            num_fitting, updates = self._allocate_most(entry, num_tokens)
            if updates is not None:
                return num_fitting, updates
            victim = roster.running[-1]
            if victim is entry and len(roster.running) == 1 and step.is_empty:
                # Alone. What it lacks may be held by ended requests that settle soon.
                if not self._in_flight:
                    self._fail_too_long(entry, entry.request.num_computed_tokens + 1)
                return 0, None
            roster.preempt(victim)
            step.preempted = True
            if victim is entry:
                return 0, None

    def _allocate_most(self, entry: Entry, num_tokens: int) -> tuple[int, list[BlockUpdate] | None]:
        start = entry.request.num_computed_tokens
        while True:
            updates = self._kv.allocate(entry.request, start + num_tokens)
            if updates is not None or num_tokens == 1:
                return num_tokens, updates
            num_tokens //= 2

    def _admit_urgent(self, step: Step) -> None:
        """Admit those that outrank running ones before these are scheduled, at their cost."""
        roster, kv = self._roster, self._kv
        while roster.running and step.budget > 0:
            entry = roster.waiting.peek(row_is_free=roster.row_is_free)
            if entry is None:
                return
            ousted = [
                other
                for other in roster.running
                if self._policy.outranks(entry.request, other.request)
            ]
            if not ousted:
                return
            if not kv.can_hold(entry.request, kv.match_prefix(entry.request)):
                num_gained = sum(kv.num_blocks_of(other.request) for other in ousted)
                if kv.num_blocks_needed(entry.num_tokens) > kv.pool.num_free_blocks + num_gained:
                    return
                roster.preempt(ousted[-1])
            elif not self._admit_next(step, max(1, step.budget - len(roster.running))):
                return

    def _admit_next(self, step: Step, budget: int) -> bool:
        """Admit the first waiting request that has or gets a row; False if nobody can join now."""
        roster, kv = self._roster, self._kv
        entry = roster.waiting.peek(row_is_free=roster.row_is_free)
        if entry is None:
            return False
        request = entry.request
        if entry.num_tokens > self.max_tokens_of_pool:
            self._fail_too_long(entry, entry.num_tokens)
            return True
        num_hit = kv.match_prefix(request)
        if not kv.can_hold(request, num_hit):
            return False
        roster.waiting.pop(entry)
        is_new = request.row < 0
        roster.take_row(entry)
        request.num_computed_tokens = num_hit
        num_tokens, updates = self._allocate_most(entry, min(entry.num_tokens - num_hit, budget))
        if updates is None:
            request.num_computed_tokens = 0
            if is_new:
                roster.put_row_back(entry)
            roster.waiting.push(entry)
            return False
        if is_new:
            request.num_cached_tokens = min(num_hit, request.num_prompt_tokens)
            step.start_row(request)
        roster.start(entry)
        step.joined.append(entry)
        step.place(entry, num_tokens, updates)
        if request.followers and request.num_in_flight_tokens:
            self._fork_followers(step, request)
        return True

    def _fork_followers(self, step: Step, leader: Request) -> None:
        """The prompt is computed: the other samples share its blocks and draw from its logits."""
        roster = self._roster
        followers, leader.followers = leader.followers, []
        for request in followers:
            entry = roster.entries[request.request_id]
            if not roster.take_row(entry):
                roster.let_go(entry)
                continue
            step.start_row(request)
            step.plan.block_updates += self._kv.fork(leader, request)
            request.num_cached_tokens = leader.num_cached_tokens
            request.num_computed_tokens = leader.num_computed_tokens
            roster.start(entry)
            step.joined.append(entry)
            step.sample(entry)

    def _fail_too_long(self, entry: Entry, num_tokens: int) -> None:
        message = (
            f"the KV cache holds at most {self.max_tokens_of_pool} tokens of one request, and this "
            f"one needs {num_tokens}; give the cache more memory or lower max_tokens"
        )
        self._roster.end(entry, "error", error=RequestError(message))

    # ---- commit

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
        roster, kv = self._roster, self._kv
        roster.settled_step_id = plan.step_id
        if plan.prompt_logprobs:
            commit_prompt_logprobs(step, output)
        for entry, num_settled in step.to_register:
            kv.register(entry.request, num_settled)
        updated = commit_tokens(step, output, roster, kv)
        roster.settle()
        return StepResult(updated, roster.take_finished())
