"""One sample of one prompt, as the engine sees it: integers and its sampling parameters.

Knows no text and no tensor. The scheduler is the only writer of the counters; the edge keeps its
own cursor into `output_token_ids`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from deepinfer_core.errors import RequestError
from deepinfer_core.images import ImageSpan, content_of
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import TokenLogprobs

if TYPE_CHECKING:
    from deepinfer_core.speculative.stats import DraftStats
    from deepinfer_core.structured.constraint import Constraint

FinishReason = Literal["stop", "length", "abort", "error"]
Status = Literal["waiting", "running", "finished"]


@dataclass(slots=True, eq=False)
class Request:
    """State of one sample. `n > 1` makes n requests that share the prompt's blocks."""

    request_id: int
    """Unique in the engine and rising with arrival; also the tie-breaker of every policy."""
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    max_total_tokens: int
    """num_prompt_tokens + the output limit, already cut to max_model_len."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None
    """What it may draw next; moves on with each token that it keeps."""
    images: tuple[ImageSpan, ...] = ()
    """In the order of the prompt; kept to the end, since a preempted prompt is computed again."""
    sample_index: int = 0
    priority: int = 0
    """Lower runs first under the priority policy."""
    arrival_time_s: float = 0.0

    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    status: Status = "waiting"
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: RequestError | None = None

    row: int = -1
    """Seat in the runner, kept for life; -1 before the first step."""
    num_computed_tokens: int = 0
    """Tokens whose KV is in the cache or being written by a step in flight."""
    num_hit_tokens: int = 0
    """Leading tokens that the prefix cache gave at the present admission. They are never written;
    with bounded replay, computing begins before their end."""
    num_in_flight_tokens: int = 0
    """Drawn by steps in flight, not on the host yet."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at first admission; a statistic only."""
    num_replay_tokens: int = 0
    """Tokens of prefix hits that were computed again, in all admissions; a statistic only."""
    num_preemptions: int = 0
    drafts: DraftStats | None = None
    """What became of guesses at its tokens; None: nobody made any."""
    followers: list[Request] = field(default_factory=list)
    """The other samples of the prompt, waiting to fork from this one."""
    wants_prompt_logprobs: bool = field(init=False)
    """One sample delivers them for all; the first, unless it ends before the prompt is done."""

    first_token_time_s: float | None = None
    """Of `time.monotonic()`, like every time here."""
    finish_time_s: float | None = None

    def __post_init__(self) -> None:
        self.wants_prompt_logprobs = (
            self.params.prompt_logprobs is not None and self.sample_index == 0
        )

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that exist, on the host or in flight."""
        return len(self.prompt_token_ids) + len(self.output_token_ids) + self.num_in_flight_tokens

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Prompt log-probabilities are wanted and not all of them are here yet."""
        return self.wants_prompt_logprobs and (
            len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1
        )

    def known_token_ids(self, start: int, stop: int) -> list[int]:
        """Prompt and output ids at positions start .. stop-1, as far as the host has them."""
        num_prompt = len(self.prompt_token_ids)
        if stop <= num_prompt:
            return self.prompt_token_ids[start:stop]
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : stop - num_prompt]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - num_prompt]

    def image_content(self, start: int, stop: int) -> bytes:
        """What the ids at positions start .. stop-1 do not say: which images they stand for."""
        return content_of(self.images, start, stop) if self.images else b""
