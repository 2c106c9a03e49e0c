"""What a person gets back: text, ids, reasons, and the numbers about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer_core.errors import RequestError
from deepinfer_core.request import FinishReason
from deepinfer_core.scheduling.plan import TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `token_ids`, `text` and `logprobs` end at the same point."""

    index: int
    text: str
    token_ids: list[int]
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds, counts in tokens."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    ttft_s: float | None = None
    latency_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """The result of one prompt. Either `error` is set or every output has a finish reason."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One for each prompt token but the first."""
    error: RequestError | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    @property
    def text(self) -> str:
        """Text of the first sample; empty when the request failed."""
        return self.outputs[0].text if self.outputs else ""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to one sample of a streamed request."""

    request_id: str
    index: int
    text: str
    """New text; never half a character, never a part of a stop string."""
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: RequestError | None = None
