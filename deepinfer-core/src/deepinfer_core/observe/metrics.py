"""`EngineMetrics`: what an engine has done so far, as plain numbers. Knows no engine.

Requests are counted when they end, by the edge; steps and cache by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from deepinfer_core.request import Request


@dataclass(slots=True)
class EngineMetrics:
    """Counts since the engine was made; times in seconds.

    A request is one sample of one prompt. Sums of times are over the finished ones.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_finished: int = 0
    """Ended by a stop or a length, and so complete."""
    num_aborted: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Of the prompt tokens, those that the prefix cache held."""
    num_replay_tokens: int = 0
    """Tokens that the prefix cache held and that were computed again (`bounded_replay`)."""
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_blocks: int = 0
    """Blocks of the pool, of which `num_free_blocks` can be had at once."""
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    """Blocks that a prompt could hit."""
    num_queried_tokens: int = 0
    """Tokens looked up in the prefix cache, once for each admission."""
    num_hit_tokens: int = 0
    """Tokens found there."""
    num_draft_steps: int = 0
    """Times that a request drew behind drafts (`speculative.proposer`)."""
    num_draft_tokens: int = 0
    """Guesses that were computed; those that were not accepted are wasted."""
    num_accepted_tokens: int = 0
    num_declined_tokens: int = 0
    """Guesses that the guard did not find worth computing (`speculative.draft_guard`)."""
    drafted_by_position: tuple[int, ...] = ()
    """How often a draft had a first guess, a second, and so on."""
    accepted_by_position: tuple[int, ...] = ()
    """How often these were accepted."""
    ttft_sum_s: float = 0.0
    latency_sum_s: float = 0.0

    @property
    def num_wasted_tokens(self) -> int:
        """Guesses that were computed for nothing."""
        return self.num_draft_tokens - self.num_accepted_tokens

    @property
    def mean_accepted_len(self) -> float:
        """Guesses accepted each time that a request drew behind some; one token comes on top."""
        return self.num_accepted_tokens / max(1, self.num_draft_steps)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of the first guesses that were accepted, of the second ones, and so on."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / max(1, drafted) for accepted, drafted in pairs)


class Totals:
    """Adds up requests as they end. Used from one thread at a time."""

    def __init__(self) -> None:
        self._sums = EngineMetrics()

    def count(self, requests: Sequence[Request]) -> None:
        """Count the samples of a prompt, which was computed once."""
        sums = self._sums
        leader = requests[0]
        sums.num_prompt_tokens += leader.num_prompt_tokens
        sums.num_cached_tokens += leader.num_cached_tokens
        sums.num_replay_tokens += sum(request.num_replay_tokens for request in requests)
        for request in requests:
            sums.num_output_tokens += request.num_output_tokens
            if request.finish_reason == "abort":
                sums.num_aborted += 1
            elif request.finish_reason == "error":
                sums.num_failed += 1
            else:
                sums.num_finished += 1
                begun, ended = request.first_token_time_s, request.finish_time_s
                if begun is not None and ended is not None:
                    sums.ttft_sum_s += begun - request.arrival_time_s
                    sums.latency_sum_s += ended - request.arrival_time_s

    def metrics(self, engine: Mapping[str, Any]) -> EngineMetrics:
        """The sums, with the engine's own numbers where their names are ours."""
        return replace(self._sums, **{n: v for n, v in engine.items() if n in _NAMES})


_NAMES = frozenset(field.name for field in fields(EngineMetrics))
