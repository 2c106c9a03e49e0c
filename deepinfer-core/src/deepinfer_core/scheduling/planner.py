"""The planner: who computes how many tokens in the next step.

There are no phases. Each request has `num_computed_tokens` behind `num_tokens`; a step hands out
tokens under one budget so that the first catches the second. Tokens in flight count as if they
were here. Knows nothing of what steps give back.
"""

from __future__ import annotations

from deepinfer_core.errors import RequestError
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import Request
from deepinfer_core.scheduling.budget import TokenBudget
from deepinfer_core.scheduling.entry import Entry
from deepinfer_core.scheduling.plan import BlockUpdate
from deepinfer_core.scheduling.policy import Policy
from deepinfer_core.scheduling.roster import Roster
from deepinfer_core.scheduling.step import Step


class Planner:
    """Fills one step after the other.

    Args:
        policy: the roster's, asked only who may oust whom.
        budget: of one step; asked anew for each.
    """

    def __init__(self, kv: KVManager, roster: Roster, policy: Policy, budget: TokenBudget) -> None:
        self._kv = kv
        self._roster = roster
        self._policy = policy
        self._budget = budget
        self.max_tokens_of_pool = kv.max_tokens_of_pool
        self.num_lookahead_tokens = 0
        """Room behind the drafts of a request, where there is any: a drafter goes on there."""
        self._blocked: tuple[Entry | None, int] = (None, 0)
        """Who found too few free blocks last, and how many there were."""

    def plan(self, step_id: int, *, is_idle: bool) -> Step:
        """Choose, and count what is chosen as done. The step may stay empty.

        Args:
            is_idle: no step is in flight, so no block will come free by waiting.
        """
        step = Step(step_id, self._budget.num_tokens)
        self._admit_urgent(step)
        self._schedule_running(step, is_idle)
        if not step.preempted:
            while step.budget > 0 and self._admit_next(step, step.budget):
                pass
        self._roster.join(step.joined)
        return step

    def _schedule_running(self, step: Step, is_idle: bool) -> None:
        running = self._roster.running
        for index, entry in enumerate(running):  # whoever is preempted leaves behind `index`
            if step.budget <= 0:
                break
            if entry.num_tokens >= entry.max_total_tokens:
                continue  # its last token is in flight
            request, drafts = entry.request, entry.draft_token_ids
            if drafts and request.num_in_flight_tokens:
                continue  # what it drafts goes behind a token that the host has yet to see
            num_tokens = entry.num_tokens - request.num_computed_tokens
            if drafts and self._place_with_drafts(step, entry, len(running) - index - 1):
                continue
            if num_tokens == 1 and entry.num_tokens <= entry.num_tokens_ready:
                step.place_next(entry)
                continue
            if num_tokens > 1:
                num_later = len(running) - index - 1
                num_tokens = max(1, min(num_tokens, step.budget - num_later))
            updates = self._allocate(entry, request.num_computed_tokens + num_tokens)
            if updates is None:
                num_tokens, updates = self._make_room(step, entry, num_tokens, is_idle)
                if updates is None:
                    continue
            self._place(step, entry, num_tokens, updates)

    def _place_with_drafts(self, step: Step, entry: Entry, num_later: int) -> bool:
        """Let a request draw behind its drafts too, as far as that costs nobody anything.

        False, and nothing is placed, where there is no room for one draft.
        """
        request, drafts = entry.request, entry.draft_token_ids
        num_tokens = entry.num_tokens - request.num_computed_tokens
        room = min(
            len(drafts),
            step.budget - num_later - num_tokens,
            entry.max_total_tokens - entry.num_tokens - 1,
        )
        if room <= 0:
            return False
        updates = self._allocate(entry, entry.num_tokens + room)
        if updates is None:
            return False
        step.place(entry, num_tokens, updates, drafts[:room])
        self._note_capacity(entry)
        return True

    def _make_room(
        self, step: Step, entry: Entry, num_tokens: int, is_idle: bool
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
                if is_idle:
                    self._fail_too_long(entry, entry.request.num_computed_tokens + 1)
                return 0, None
            roster.preempt(victim)
            step.preempted = True
            if victim is entry:
                return 0, None

    def _allocate_most(self, entry: Entry, num_tokens: int) -> tuple[int, list[BlockUpdate] | None]:
        start = entry.request.num_computed_tokens
        while True:
            updates = self._allocate(entry, start + num_tokens)
            if updates is not None or num_tokens == 1:
                return num_tokens, updates
            num_tokens //= 2

    def _admit_urgent(self, step: Step) -> None:
        """Admit those that outrank running ones before these are scheduled, at their cost."""
        roster, outranks = self._roster, self._policy.outranks
        self._oust_for_row()
        while roster.running and step.budget > 0:
            entry = roster.waiting.peek(row_is_free=roster.row_is_free)
            if entry is None or not outranks(entry.request, roster.running[-1].request):
                return
            if self._match(entry) is None:
                if not self._can_make_room(entry.request):
                    return
                roster.preempt(roster.running[-1])
            elif not self._admit_next(step, max(1, step.budget - len(roster.running))):
                return

    def _oust_for_row(self) -> None:
        """If the first that waits has no row and none is free or soon will be, find it one."""
        roster = self._roster
        if roster.row_is_free or roster.row_is_coming:
            return
        entry, victim = roster.waiting.peek(row_is_free=True), roster.last_seated
        if entry is None or victim is None or entry.request.row >= 0:
            return
        if self._policy.outranks(entry.request, victim.request) and self._can_make_room(
            entry.request
        ):
            roster.oust(victim)

    def _can_make_room(self, request: Request) -> bool:
        """Whether it would fit if it had the blocks of all whom it outranks."""
        kv, outranks = self._kv, self._policy.outranks
        others = (other.request for other in self._roster.running)
        lesser = [other for other in others if outranks(request, other)]
        return kv.can_hold(request, kv.match_prefix(request), without=lesser)

    def _admit_next(self, step: Step, budget: int) -> bool:
        """Admit the first waiting request that has or gets a row; False if nobody can join now."""
        roster = self._roster
        entry = roster.waiting.peek(row_is_free=roster.row_is_free)
        if entry is None:
            return False
        request = entry.request
        if entry.num_tokens > self.max_tokens_of_pool:
            self._fail_too_long(entry, entry.num_tokens)
            return True
        num_hit = self._match(entry)
        if num_hit is None:
            return False
        roster.waiting.pop(entry)
        is_new = request.row < 0  # to the runner
        roster.take_row(entry)
        request.num_hit_tokens = num_hit
        request.num_computed_tokens = start = self._kv.layout.first_to_compute(num_hit)
        num_tokens, updates = self._allocate_most(entry, min(entry.num_tokens - start, budget))
        if updates is None:
            request.num_computed_tokens = request.num_hit_tokens = 0
            if is_new:
                roster.put_row_back(entry)
            roster.waiting.push(entry)
            return False
        if is_new:
            step.start_row(request)
        if not request.num_preemptions:
            request.num_cached_tokens = num_hit
        request.num_replay_tokens += num_hit - start
        roster.start(entry)
        step.joined.append(entry)
        self._place(step, entry, num_tokens, updates)
        return True

    def _place(self, step: Step, entry: Entry, num_tokens: int, updates: list[BlockUpdate]) -> None:
        request = entry.request
        step.place(entry, num_tokens, updates)
        if request.num_in_flight_tokens:  # all that it has is computed
            if request.followers:
                self._fork_followers(step, request)
            self._note_capacity(entry)

    def _allocate(self, entry: Entry, num_tokens: int) -> list[BlockUpdate] | None:
        """Room for so many tokens, and where blocks are plenty for those that may be drafted.

        A fork shares blocks as they are, so there must be none that only drafts are written to.
        """
        kv, request = self._kv, entry.request
        is_plenty = kv.pool.num_free_blocks > 2 * len(self._roster.running)
        if self.num_lookahead_tokens and is_plenty and not request.followers:
            ahead = min(num_tokens + self.num_lookahead_tokens, entry.max_total_tokens)
            updates = kv.allocate(request, ahead)
            if updates is not None:
                return updates
        return kv.allocate(request, num_tokens)

    def _note_capacity(self, entry: Entry) -> None:
        capacity = self._kv.capacity_of(entry.request)
        entry.num_tokens_ready = capacity - self.num_lookahead_tokens

    def _match(self, entry: Entry) -> int | None:
        """Tokens of a waiting request that the cache serves; None if the rest can't fit now.

        It must fit whole, not just its first chunk: else it would be preempted half-way by those
        before it, over and over. Not asked again before more blocks are free: the answer may cost
        a look at every block of a long prompt.
        """
        kv, num_free = self._kv, self._kv.pool.num_free_blocks
        blocked, num_free_then = self._blocked
        if entry is blocked and num_free <= num_free_then:
            return None
        num_hit = kv.match_prefix(entry.request)
        if kv.can_hold(entry.request, num_hit):
            return num_hit
        self._blocked = (entry, num_free)
        return None

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

    def fail_too_large(self, entry: Entry, reason: str) -> None:
        """End a request for whose next token alone there is too little memory."""
        if entry.request.is_finished:
            return
        message = (
            f"memory ran out at position {entry.request.num_computed_tokens} of this request, with "
            f"nothing else in the step: {reason}; send a shorter prompt, lower max_tokens, or give "
            "the KV cache less (cache.memory_fraction or cache.num_blocks)"
        )
        self._roster.end(entry, "error", error=RequestError(message))

    def _fail_too_long(self, entry: Entry, num_tokens: int) -> None:
        message = (
            f"the KV cache holds at most {self.max_tokens_of_pool} tokens of one request, and this "
            f"one needs {num_tokens}; give the cache more memory or lower max_tokens"
        )
        self._roster.end(entry, "error", error=RequestError(message))
