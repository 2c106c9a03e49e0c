"""What the scheduler keeps about a request, beside what the request shows. Rules: `roster.py`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from deepinfer_core.request import Request
from deepinfer_core.speculative.acceptance import Acceptance


class Place(Enum):
    """Where a request is. Each is in exactly one place."""

    ATTACHED = auto()
    """A sample of n > 1 that will fork from its leader."""
    HELD = auto()
    """Not ready to wait yet; so are the samples that will fork from it, which are attached."""
    WAITING = auto()
    RUNNING = auto()
    SETTLING = auto()
    """Left the running ones, preempted or finished, with a step in flight."""
    GONE = auto()


class Entry:
    """A request's place and what the step loop reads of it, precomputed."""

    __slots__ = (
        "acceptance",
        "draft_token_ids",
        "gives_up_row",
        "key",
        "last_step_id",
        "leader",
        "max_output_tokens",
        "max_total_tokens",
        "num_tokens",
        "num_tokens_ready",
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
        self.gives_up_row = False
        """Its row goes to a more urgent one as soon as no step in flight uses it."""
        self.leader: Entry | None = None
        """While attached: the entry that computes the shared prompt."""
        self.num_tokens = request.num_tokens
        """Equals `request.num_tokens`, which is too slow for the loop."""
        self.num_tokens_ready = 0
        """Up to so many, one token after the other needs no look at blocks and samples."""
        self.acceptance: Acceptance | None = None
        """None: nobody guesses its tokens, or not yet."""
        self.draft_token_ids: Sequence[int] = ()
        """Guesses behind its settled tokens. While a step of it is in flight, they are void, and
        say that it waits for its token to be drafted behind."""
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
