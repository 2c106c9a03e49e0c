"""`FakeEngine`: the verbs of `Engine` with scripted tokens, for tests of what stands above it.

Loads in no time and computes nothing. A step that was launched is reported by the next one when
`overlap` is on, as in the real engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from time import monotonic
from types import SimpleNamespace
from typing import Any

from deepinfer_core.errors import PromptTooLongError, RequestError
from deepinfer_core.images import PreparedImage
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import TokenLogprobs
from deepinfer_core.scheduling.scheduler import StepResult
from deepinfer_core.structured.constraint import ThinkingStart
from deepinfer_core.testing.tiny_tokenizer import (
    CHAT_TEMPLATE,
    EOS_TOKEN_ID,
    SPECIAL_TOKENS,
    make_tokenizer,
)
from deepinfer_core.text.tokenizer import Tokenizer

Reply = Callable[[Sequence[int], int], Sequence[int]]
"""(prompt ids, sample index) -> output ids, which end-of-sequence follows."""


class FakeEngine:
    """An engine whose answers are a function of the prompt.

    Args:
        reply: default: the prompt itself, backwards.
        tokens_per_step: of each request; more than 1 as with drafts.
        tokenizer: default: `fake_tokenizer()`.
    """

    limits = SimpleNamespace(vision=None)
    """It sees no images."""

    def __init__(
        self,
        reply: Reply | None = None,
        *,
        max_model_len: int = 4096,
        max_num_seqs: int = 8,
        overlap: bool = True,
        tokens_per_step: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.tokenizer = fake_tokenizer() if tokenizer is None else tokenizer
        self.vocab_size = self.tokenizer.vocab_size
        self.max_model_len = max_model_len
        self.info = SimpleNamespace(architecture="FakeForCausalLM")
        self.num_added = 0
        """Requests that were added; a test may set it back."""
        self.is_closed = False
        self.fail_next_step: Exception | None = None
        self._reply = reply or (lambda prompt, index: list(reversed(prompt)))
        self._max_num_seqs = max_num_seqs
        self._overlap = overlap
        self._tokens_per_step = tokens_per_step
        self._live: dict[int, tuple[Request, list[int]]] = {}
        self._request_ids = itertools.count()
        self._in_flight: list[Request] = []
        self._ended: list[Request] = []

    @property
    def eos_token_id(self) -> int:
        """Of its tokenizer; follows each answer."""
        token_id = self.tokenizer.eos_token_id
        return EOS_TOKEN_ID if token_id is None else token_id

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        images: Sequence[PreparedImage] = (),
        priority: int = 0,
        thinking: ThinkingStart | None = None,
    ) -> list[Request]:
        prompt = list(prompt_token_ids)
        known = all(hasattr(i, "__index__") and 0 <= i < self.vocab_size for i in prompt)
        if not prompt or not known:
            raise RequestError("prompt is empty or holds an unknown token id", field="prompt")
        if len(prompt) >= self.max_model_len:
            raise PromptTooLongError(
                f"prompt has {len(prompt)} tokens, at most {self.max_model_len - 1} fit"
            )
        room = self.max_model_len - len(prompt)
        requests = []
        for index in range(params.n):
            request = Request(
                request_id=next(self._request_ids),
                prompt_token_ids=prompt,
                params=params,
                seed=params.seed if params.seed is not None else 7,
                stop_token_ids=frozenset({self.eos_token_id, *params.stop_token_ids}),
                max_total_tokens=len(prompt) + min(params.max_tokens or room, room),
                sample_index=index,
                priority=priority,
                arrival_time_s=monotonic(),
            )
            self.num_added += 1
            self._live[request.request_id] = (
                request,
                [*self._reply(prompt, index), self.eos_token_id],
            )
            requests.append(request)
        if params.prompt_logprobs is not None:
            requests[0].prompt_logprobs = [TokenLogprobs(i, -0.5, 1 + i % 2) for i in prompt[1:]]
        return requests

    def abort(self, request: Request, *, finish_reason: FinishReason = "abort") -> None:
        if not request.is_finished:
            self._end(request, finish_reason, None)

    def finish(self, request: Request, *, num_output_tokens: int, stop_reason: str) -> None:
        del request.output_token_ids[num_output_tokens:], request.logprobs[num_output_tokens:]
        if not request.is_finished:
            self._end(request, "stop", stop_reason)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._live or self._in_flight or self._ended)

    def advance(self) -> StepResult:
        if self.fail_next_step is not None:
            raise self.fail_next_step
        running = [request for request, _ in self._live.values()][: self._max_num_seqs]
        settled = self._in_flight if self._overlap else running
        self._in_flight = running if self._overlap else []
        updated = [r for r in settled if not r.is_finished]
        for request in updated:
            for _ in range(self._tokens_per_step):
                if not request.is_finished:
                    self._append(request)
        finished, self._ended = self._ended, []
        return StepResult(updated=updated, finished=finished)

    def metrics(self) -> dict[str, Any]:
        return {"num_running": len(self._live), "num_waiting": 0, "num_steps": 3}

    def close(self) -> None:
        self.is_closed = True

    def _append(self, request: Request) -> None:
        token_id = self._live[request.request_id][1][request.num_output_tokens]
        request.output_token_ids.append(token_id)
        if request.first_token_time_s is None:
            request.first_token_time_s = monotonic()
        if request.params.logprobs is not None:
            request.logprobs.append(TokenLogprobs(token_id, -0.25, 1))
        if token_id in request.stop_token_ids:
            self._end(request, "stop", token_id if token_id != self.eos_token_id else None)
        elif request.num_tokens >= request.max_total_tokens:
            self._end(request, "length", None)

    def _end(self, request: Request, reason: FinishReason, stop_reason: int | str | None) -> None:
        request.status, request.finish_reason = "finished", reason
        request.stop_reason = stop_reason
        request.finish_time_s = monotonic()
        self._live.pop(request.request_id, None)
        self._ended.append(request)


def fake_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with a chat template; any text encodes."""
    unknown, begin, end = SPECIAL_TOKENS
    return Tokenizer(
        make_tokenizer(),
        special_tokens={"bos_token": begin, "eos_token": end, "pad_token": unknown},
        chat_templates={"default": CHAT_TEMPLATE},
    )
