"""What the scheduler keeps about a request and about a step, beside what the request shows.

Plain records; the rules are in `roster.py` and `scheduler.py`.
"""

from __future__ import annotations

from enum import Enum, auto

from deepinfer_core.request import Request
from deepinfer_core.scheduling.plan import StepPlan


class Place(Enum):
    """Where a request is. Each is in exactly one place."""

    ATTACHED = auto()
    """A sample of n > 1 that will fork from its leader."""
    WAITING = auto()
    RUNNING = auto()
    SETTLING = auto()
    """Left the running ones, preempted or finished, with a step in flight."""
    GONE = auto()


class Entry:
    """A request's place and what the step loop reads of it, precomputed."""

    __slots__ = (
        "key",
        "last_step_id",
        "leader",
        "max_output_tokens",
        "max_total_tokens",
        "num_tokens",
        "place",
        "prompt_logprobs_end",
        "request",
        "request_id",
        "stop_token_ids",
    )

    def __init__(self, request: Request, key: tuple[int, ...]) -> None:
        self.request = request
        self.request_id = request.request_id
        self.key = key
        self.place = Place.WAITING
        self.leader: Entry | None = None
        """While attached: the entry that computes the shared prompt."""
        self.num_tokens = request.num_tokens
        """Equals `request.num_tokens`, which is too slow for the loop."""
        self.max_total_tokens = request.max_total_tokens
        self.max_output_tokens = request.max_total_tokens - request.num_prompt_tokens
        self.stop_token_ids = request.stop_token_ids
        self.prompt_logprobs_end = 0
        """Positions before this predict a prompt token whose log-probability is wanted."""
        self.last_step_id = -1
        """The latest step that computes or samples for it; in flight until that one settles."""
        self.want_prompt_logprobs()

    def want_prompt_logprobs(self) -> None:
        """Take over what the request says about its prompt's log-probabilities."""
        if self.request.wants_prompt_logprobs:
            self.prompt_logprobs_end = self.request.num_prompt_tokens - 1


class Step:
    """A plan under construction, then in flight: the plan and the entries behind its lists."""

    __slots__ = ("budget", "entries", "joined", "plan", "preempted", "sampled", "to_register")

    def __init__(self, plan: StepPlan, budget: int) -> None:
        self.plan = plan
        self.budget = budget
        """Tokens that may still be scheduled."""
        self.entries: list[Entry] = []
        """Parallel to `plan.rows`."""
        self.sampled: list[Entry] = []
        """Parallel to `plan.sample_rows`."""
        self.to_register: list[tuple[Entry, int]] = []
        """Who may have filled a block, and how many of its tokens this step settles."""
        self.joined: list[Entry] = []
        """Admitted or forked in this step; they join the running ones when it is complete."""
        self.preempted = False
        """Blocks ran out, so nobody new is admitted."""
