"""`Generation`: one prompt's samples on their way from token ids to text.

Runs on whatever thread drives the engine, so its callbacks must not block. Samples that nobody
streams and that have no stop strings are turned into text once, when they have finished.
INVARIANT: ids, text and log-probabilities of a sample end at the same token, and the earliest
event wins: a stop string in the last allowed token is a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepinfer_core.errors import DeepInferError, RequestError
from deepinfer_core.outputs import CompletionOutput, OutputDelta, RequestMetrics, RequestOutput
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.scheduling.plan import TokenLogprobs
from deepinfer_core.text.stops import OutputText, TextDelta

CutSample = Callable[[Request, int, str], None]
"""(request, num_output_tokens, stop_reason): a stop string ended the request."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who hears of a generation. Called under the engine's lock; must not block or raise."""

    done: Callable[[Generation], None]
    delta: Callable[[OutputDelta], None] | None = None
    """None: not streamed."""


class _Sample:
    """One request and the text of its output so far."""

    __slots__ = ("finish_reason", "num_seen", "parts", "request", "stop_reason", "text")

    def __init__(self, request: Request, text: OutputText) -> None:
        self.request = request
        self.text = text
        self.parts: list[str] = []
        self.num_seen = 0
        """Ids that the text has taken; the length of the output once it has ended."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    def take(self) -> str:
        """Take the ids that are new and return the text that they add."""
        request = self.request
        ids = request.output_token_ids[self.num_seen :]
        ended = request.is_finished
        delta = self.text.feed(
            ids, ends_with_stop_token=ended and request.finish_reason == "stop" and bool(ids)
        )
        self.num_seen += len(ids)
        self.parts.append(delta.text)
        if delta.num_tokens_kept is not None:
            self._end_with(delta, "stop", None)
        elif ended:
            return delta.text + self.end(request.finish_reason or "abort", request.stop_reason)
        return delta.text

    def end(self, reason: FinishReason, stop_reason: int | str | None = None) -> str:
        """No more ids will come: return the text that was held back."""
        delta = self.text.finish()
        self.parts.append(delta.text)
        self._end_with(delta, reason, stop_reason)
        return delta.text

    def _end_with(
        self, delta: TextDelta, reason: FinishReason, stop_reason: int | str | None
    ) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason
        if delta.num_tokens_kept is not None:
            self.num_seen = delta.num_tokens_kept
            self.finish_reason, self.stop_reason = "stop", delta.matched

    def logprobs(self, start: int) -> list[TokenLogprobs] | None:
        if self.request.params.logprobs is None:
            return None
        return self.request.logprobs[start : self.num_seen]

    def output(self) -> CompletionOutput:
        logprobs = self.logprobs(0)
        return CompletionOutput(
            index=self.request.sample_index,
            text="".join(self.parts),
            token_ids=self.request.output_token_ids[: self.num_seen],
            seed=self.request.seed,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else sum(e.logprob for e in logprobs),
        )


class Generation:
    """Collects the samples of one prompt. A `Watcher` of the engine loop."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        requests: Sequence[Request],
        *,
        texts: Sequence[OutputText],
        callbacks: Callbacks,
        cut: CutSample,
    ) -> None:
        self.request_id = request_id
        self.requests = list(requests)
        self.failure: DeepInferError | None = None
        """The engine stopped before this was done."""
        self._prompt = prompt
        self._samples = [_Sample(r, t) for r, t in zip(requests, texts, strict=True)]
        self._num_open = len(self._samples)
        self._callbacks = callbacks
        self._cut = cut
        streamed = callbacks.delta is not None
        self.needs_every_step = streamed or bool(requests[0].params.stop)

    @property
    def is_done(self) -> bool:
        return self._num_open == 0

    def update(self, request: Request) -> None:
        """Take what the engine added to one of the requests."""
        sample = self._samples[request.sample_index]
        if sample.finish_reason is not None:
            return
        start = sample.num_seen
        added = sample.take()
        if isinstance(sample.stop_reason, str):
            self._cut(request, sample.num_seen, sample.stop_reason)
        self._tell(sample, start, added)

    def close(self, reason: FinishReason = "abort") -> None:
        """End every sample that is still open, with what it has."""
        for sample in self._samples:
            if sample.finish_reason is None:
                start = sample.num_seen
                added = sample.take()
                if sample.finish_reason is None:
                    added += sample.end(reason)
                self._tell(sample, start, added)

    def fail(self, error: DeepInferError) -> None:
        """The engine stopped."""
        if not self.is_done:
            self.failure = error
            self._num_open = 0
            self._callbacks.done(self)

    def output(self) -> RequestOutput:
        """The result so far; complete once `is_done`."""
        first = self.requests[0]
        errors = [r.error for r in self.requests if r.error is not None]
        wants_prompt = first.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=first.prompt_token_ids,
            outputs=[sample.output() for sample in self._samples],
            prompt_logprobs=first.prompt_logprobs if wants_prompt else None,
            error=errors[0] if errors else None,
            metrics=self._metrics(),
        )

    def _tell(self, sample: _Sample, start: int, added: str) -> None:
        on_delta = self._callbacks.delta
        if on_delta is not None:
            on_delta(
                OutputDelta(
                    request_id=self.request_id,
                    index=sample.request.sample_index,
                    text=added,
                    token_ids=sample.request.output_token_ids[start : sample.num_seen],
                    logprobs=sample.logprobs(start),
                    finish_reason=sample.finish_reason,
                    stop_reason=sample.stop_reason,
                    error=sample.request.error,
                )
            )
        if sample.finish_reason is not None:
            self._num_open -= 1
            if self._num_open == 0:
                self._callbacks.done(self)

    def _metrics(self) -> RequestMetrics:
        first = self.requests[0]
        begun = [r.first_token_time_s for r in self.requests if r.first_token_time_s is not None]
        ended = [r.finish_time_s for r in self.requests if r.finish_time_s is not None]
        return RequestMetrics(
            num_prompt_tokens=first.num_prompt_tokens,
            num_cached_tokens=first.num_cached_tokens,
            num_output_tokens=sum(sample.num_seen for sample in self._samples),
            num_preemptions=sum(r.num_preemptions for r in self.requests),
            ttft_s=min(begun) - first.arrival_time_s if begun else None,
            latency_s=max(ended) - first.arrival_time_s if ended else None,
        )


def failed_output(request_id: str, prompt: str | None, error: RequestError) -> RequestOutput:
    """The result of a prompt that never reached the engine."""
    return RequestOutput(request_id=request_id, prompt=prompt, prompt_token_ids=[], error=error)
