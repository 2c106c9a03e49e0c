"""`Frontend`: encoded prompts in, results out, for whoever waits, streams or keeps a window full.

Owns the requests' names and the loop that drives the engine. Every face is a few lines on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.generation import Callbacks, Generation
from deepinfer_core.faces.loop import EngineLoop
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.faces.protocol import EngineProtocol
from deepinfer_core.faces.sample import Sample, make_sample
from deepinfer_core.observe.metrics import EngineMetrics, Totals
from deepinfer_core.outputs import OutputDelta, RequestOutput
from deepinfer_core.plugin_api.recipe import ReplyParser
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.text.tokenizer import Tokenizer


class Frontend:
    """Starts and aborts generations on one engine. Thread-safe."""

    def __init__(self, engine: EngineProtocol, tokenizer: Tokenizer) -> None:
        self.loop = EngineLoop(engine)
        self._engine = engine
        self._tokenizer = tokenizer
        self._numbers = itertools.count()
        self._totals = Totals()
        self._running: dict[str, Generation] = {}

    def new_request_id(self) -> str:
        """A name that no other running request of this engine has."""
        names = (f"request-{number}" for number in self._numbers)
        return next(name for name in names if name not in self._running)

    def start(
        self,
        encoded: EncodedPrompt,
        params: SamplingParams,
        *,
        on_done: Callable[[Generation], None],
        on_delta: Callable[[OutputDelta], None] | None = None,
        priority: int = 0,
        request_id: str | None = None,
    ) -> Future[Generation]:
        """Queue a prompt; callbacks run on the thread that drives the engine.

        Returns:
            A future, done at once unless a step is running. It raises RequestError when the
            engine refuses the prompt, EngineError when the engine has stopped.
        """
        name = self.new_request_id() if request_id is None else request_id

        def done(generation: Generation) -> None:
            self._running.pop(name, None)
            self._totals.count(generation.requests)
            on_done(generation)

        def add() -> Generation:
            if name in self._running:
                raise RequestError(f"request id {name!r} is already in use", field="request_id")
            samples = self._add(encoded, params, priority)
            callbacks = Callbacks(done, on_delta)
            generation = Generation(name, encoded.text, samples, callbacks=callbacks, cut=self._cut)
            self._running[name] = generation
            for request in generation.requests:
                self.loop.watch(request, generation)
            return generation

        return self.loop.submit(add)

    def submit(
        self,
        encoded: EncodedPrompt,
        params: SamplingParams,
        on_done: Callable[[RequestOutput], None],
        *,
        priority: int = 0,
    ) -> str:
        """As `start`, for whoever wants results only; `on_done` is not called on a failed engine.

        Returns:
            The request's id. Waits for the step that is running, if one is.
        """
        name = self.new_request_id()

        def done(generation: Generation) -> None:
            if generation.failure is None:
                on_done(generation.output())

        self.start(encoded, params, on_done=done, priority=priority, request_id=name).result()
        return name

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far. Waits for the step that is running, if one is."""
        return self.loop.call(lambda: self._totals.metrics(self._engine.metrics()))

    def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown and finished ones are fine. Never waits."""
        self.loop.post(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        generation = self._running.get(request_id)
        if generation is None:
            return
        for request in generation.requests:
            self.loop.unwatch(request)
            self._engine.abort(request)
        generation.close()

    def _cut(self, request: Request, num_output_tokens: int, stop_reason: str | None) -> None:
        self.loop.unwatch(request)
        if stop_reason is None:
            self._engine.abort(request, finish_reason="error")
        else:
            self._engine.finish(
                request, num_output_tokens=num_output_tokens, stop_reason=stop_reason
            )

    def _add(self, encoded: EncodedPrompt, params: SamplingParams, priority: int) -> list[Sample]:
        make_parser = encoded.make_parser
        parsers: list[ReplyParser | None] = [None] * params.n
        if make_parser is not None:
            parsers = [make_parser() for _ in range(params.n)]
        requests = self._engine.add(
            encoded.token_ids,
            _as_asked(params, encoded),
            images=encoded.images,
            priority=priority,
            thinking=encoded.thinking,
        )
        return [
            make_sample(
                request,
                self._tokenizer,
                continues_text=encoded.continues_text,
                parser=parsers[request.sample_index],
                end_token_ids=frozenset(encoded.stop_token_ids) - {*params.stop_token_ids},
            )
            for request in requests
        ]


def _as_asked(params: SamplingParams, encoded: EncodedPrompt) -> SamplingParams:
    """The parameters with what the conversation says itself."""
    changes: dict[str, Any] = {}
    if encoded.stop_token_ids:
        changes["stop_token_ids"] = (*params.stop_token_ids, *encoded.stop_token_ids)
    if encoded.structured is not None:
        if params.structured is not None:
            raise RequestError(
                f"structured.{params.structured.form}: the conversation asks for a form, too "
                "(response_format or tools); leave out one of the two",
                field="structured",
            )
        changes["structured"] = encoded.structured
    if not changes:
        return params
    return SamplingParams(**{**params.model_dump(exclude_unset=True), **changes})
