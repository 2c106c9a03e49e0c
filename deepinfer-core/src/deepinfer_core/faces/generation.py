"""`Generation`: one prompt's samples, and who hears of them.

Runs on whatever thread drives the engine, so its callbacks must not block. Samples that nobody
streams and that have no stop strings are turned into text once, when they have finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepinfer_core.errors import DeepInferError, RequestError
from deepinfer_core.faces.sample import Added, Sample
from deepinfer_core.outputs import OutputDelta, RequestMetrics, RequestOutput
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.speculative.stats import joined_stats

CutSample = Callable[[Request, int, str | None], None]
"""(request, num_output_tokens, stop_reason): a stop string ended the request; or, where that is
None, its answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who hears of a generation. Called under the engine's lock; must not block or raise."""

    done: Callable[[Generation], None]
    delta: Callable[[OutputDelta], None] | None = None
    """None: not streamed."""


class Generation:
    """Collects the samples of one prompt. A `Watcher` of the engine loop."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        samples: Sequence[Sample],
        *,
        callbacks: Callbacks,
        cut: CutSample,
    ) -> None:
        self.request_id = request_id
        self.requests = [sample.request for sample in samples]
        self.failure: DeepInferError | None = None
        """The engine stopped before this was done."""
        self._prompt = prompt
        self._samples = samples
        self._num_open = len(samples)
        self._callbacks = callbacks
        self._cut = cut
        streamed = callbacks.delta is not None
        self.needs_every_step = streamed or bool(self.requests[0].params.stop)

    @property
    def is_done(self) -> bool:
        return self._num_open == 0

    def update(self, request: Request) -> None:
        """Take what the engine added to one of the requests."""
        sample = self._samples[request.sample_index]
        if sample.finish_reason is not None:
            return
        self._tell(sample, sample.take())

    def close(self, reason: FinishReason = "abort") -> None:
        """End every sample that is still open, with what it has."""
        for sample in self._samples:
            if sample.finish_reason is None:
                self._tell(sample, sample.take(closing=reason))

    def fail(self, error: DeepInferError) -> None:
        """The engine stopped."""
        if not self.is_done:
            self.failure = error
            self._num_open = 0
            self._callbacks.done(self)

    def output(self) -> RequestOutput:
        """The result so far; complete once `is_done`."""
        first = self.requests[0]
        errors = [error for s in self._samples if (error := s.error or s.request.error)]
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

    def _tell(self, sample: Sample, added: Added) -> None:
        if sample.error is not None:
            self._cut(sample.request, sample.num_seen, None)
        elif isinstance(sample.stop_reason, str):
            self._cut(sample.request, sample.num_seen, sample.stop_reason)
        if self._callbacks.delta is not None:
            self._callbacks.delta(sample.delta(self.request_id, added))
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
            num_replay_tokens=sum(r.num_replay_tokens for r in self.requests),
            num_output_tokens=sum(sample.num_seen for sample in self._samples),
            num_preemptions=sum(r.num_preemptions for r in self.requests),
            **joined_stats(r.drafts for r in self.requests).to_dict(),
            ttft_s=min(begun) - first.arrival_time_s if begun else None,
            latency_s=max(ended) - first.arrival_time_s if ended else None,
        )


def failed_output(request_id: str, prompt: str | None, error: RequestError) -> RequestOutput:
    """The result of a prompt that never reached the engine."""
    return RequestOutput(request_id=request_id, prompt=prompt, prompt_token_ids=[], error=error)
