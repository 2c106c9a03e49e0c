"""`EngineMetrics`: what an engine has done so far, as plain numbers. Knows no engine.

Requests are counted when they end, by the edge; steps and cache by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from deepinfer_core.request import Request
from deepinfer_core.speculative.stats import DraftCounts


@dataclass(slots=True, kw_only=True)
class EngineMetrics(DraftCounts):
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
    num_mask_rows: int = 0
    """Masks of grammars, one for each token that might be drawn."""
    mask_fill_s: float = 0.0
    """Time that filling them took, while the device computed."""
    num_grammars_compiled: int = 0
    num_grammar_hits: int = 0
    """Requests whose grammar had been compiled for an earlier one."""
    grammar_compile_s: float = 0.0
    """Time that compiling took, beside the engine's loop."""
    ttft_sum_s: float = 0.0
    latency_sum_s: float = 0.0


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
