"""`LLM`: one engine with several faces, for whoever has prompts, conversations or documents.

Text is turned into ids before it reaches the engine and back after it left. The first streaming
or asynchronous use starts one thread that drives the engine from then on; until then the caller's
own thread does. All methods are thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.faces.chat import ChatOptions, Conversation
from deepinfer_core.faces.collect import make_jobs, run_jobs
from deepinfer_core.faces.prompts import EncodedPrompt, Params, Prompt, parse_params
from deepinfer_core.faces.scoring import ScoreOutput, Text, pair_up, score_pairs
from deepinfer_core.faces.setup import open_engine
from deepinfer_core.faces.streams import TokenStream, stream_async
from deepinfer_core.observe.metrics import EngineMetrics
from deepinfer_core.outputs import OutputDelta, RequestOutput
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams

OnError = Literal["output", "raise"]


class LLM:
    """A model that is loaded and ready. A context manager; `close` frees it.

        with LLM("SmolLM2-135M-Instruct.Q4_1.gguf", max_num_seqs=16) as llm:
            print(llm.chat([{"role": "user", "content": "Hi!"}])[0].text)

    Args:
        model: a Hugging Face directory, a GGUF file, or (extra `hub`) a hub id.
        config: instead of `model` and `fields`, the whole configuration.
        host: plugins to use; default: those that are installed, as the configuration says.
        fields: settings by their flat names, such as `max_num_seqs=16`.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: the engine cannot be built.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: EngineConfig | None = None,
        host: PluginHost | None = None,
        **fields: Any,
    ) -> None:
        opened = open_engine(model, config, host, fields)
        self.config = opened.config
        self.engine = opened.engine
        """For tools that look inside; touch it only while nothing runs."""
        self.encoder = opened.encoder
        self.tokenizer = opened.encoder.tokenizer
        self._frontend = opened.frontend
        # Streams hold the frontend, too: they go on when whoever made them forgets the LLM.
        self._close = weakref.finalize(self._frontend, self._frontend.loop.close)

    @property
    def model_name(self) -> str:
        """The model as people call it: the last part of its path."""
        return Path(self.config.model.model).name

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        priority: int = 0,
        on_error: OnError = "output",
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts. Blocks until all are done; they share the engine's steps.

        Args:
            prompts: one or many of: text, token ids, `{"prompt": text}`,
                `{"prompt_token_ids": ids}`. A mapping may have `images`: for each image token of
                the prompt pixels [height, width, 3] of uint8, a path, a URL, or bytes of a file.
            sampling_params: one for all, or one for each prompt.
            priority: lower goes first, where the scheduler's policy is `priority`.
            on_error: `output`: a prompt or parameter that cannot be served gives an output with
                `.error`, and the others finish. `raise`: the first such error ends the call.
            progress: show a bar on a terminal; default: for more than one prompt.

        Returns:
            One output for each prompt, in order. After Ctrl-C those that were not done have the
            finish reason `abort`.

        Raises:
            RequestError: with `on_error="raise"`.
            ConfigError: as many parameters as prompts were expected.
            EngineError: the engine stopped.
        """
        return run_jobs(
            self._frontend,
            make_jobs(self.encoder.prompts(prompts), sampling_params),
            priority=priority,
            raise_errors=_raises(on_error),
            progress=progress,
        )

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        priority: int = 0,
        on_error: OnError = "output",
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer conversations: as `generate`, for one or many lists of messages.

        Args:
            messages: each message has `role` and `content`; `CompletionOutput.message` is one.
            options: `tools`, `add_generation_prompt`, `continue_final_message`,
                `chat_template_kwargs`.

        Returns:
            As `generate`. Where a recipe serves the model, outputs also have `reasoning_content`
            and `tool_calls`, and `content` without either.
        """
        return run_jobs(
            self._frontend,
            make_jobs(self.encoder.chats(messages, **options), sampling_params),
            priority=priority,
            raise_errors=_raises(on_error),
            progress=progress,
        )

    def stream(
        self,
        prompt_or_messages: Prompt | Conversation,
        sampling_params: Params | None = None,
        *,
        priority: int = 0,
        request_id: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> TokenStream:
        """Serve one prompt or conversation and iterate over what each step adds.

        Closing the stream, or leaving a loop over it and letting it go, aborts the request.

        Args:
            request_id: for `abort`; default: a new one.
            options: as in `chat`; only for conversations.

        Raises:
            RequestError: it cannot be served.
        """
        return TokenStream(
            self._frontend,
            self.encoder.either(prompt_or_messages, **options),
            parse_params(sampling_params),
            priority=priority,
            request_id=request_id,
        )

    def agenerate(
        self,
        prompt_or_messages: Prompt | Conversation,
        sampling_params: Params | None = None,
        *,
        priority: int = 0,
        request_id: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[OutputDelta, None]:
        """As `stream`, for `async for`. Cancelling or closing it aborts the request."""
        return stream_async(
            self._frontend,
            self.encoder.either(prompt_or_messages, **options),
            parse_params(sampling_params),
            priority=priority,
            request_id=request_id,
        )

    def score(
        self,
        contexts: Text | Sequence[Text],
        continuations: Text | Sequence[Text],
        *,
        on_error: OnError = "output",
        progress: bool | None = None,
    ) -> list[ScoreOutput]:
        """Log-likelihood of each continuation after its context, in nats.

        Args:
            contexts, continuations: one pair, or as many of the one as of the other; each text or
                token ids.
        """
        return score_pairs(
            self._frontend,
            self.tokenizer,
            pair_up(contexts, continuations),
            raise_errors=_raises(on_error),
            progress=progress,
        )

    def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown and finished ones are fine."""
        self._frontend.abort(request_id)

    def submit(
        self,
        encoded: EncodedPrompt,
        params: SamplingParams,
        on_done: Callable[[RequestOutput], None],
        *,
        priority: int = 0,
    ) -> str:
        """Queue one prompt and return its request id; for tools that keep many in flight.

        Args:
            encoded: from `encoder`.
            on_done: called on the thread that drives the engine; must not block or raise. Not
                called when the engine stops; `drive` says that.

        Raises:
            RequestError: it cannot be served.
        """
        return self._frontend.submit(encoded, params, on_done, priority=priority)

    def drive(self, done: threading.Event, stop: Callable[[], bool] = lambda: False) -> None:
        """Keep the engine going until `done` is set or `stop()` is true. Blocks.

        Raises:
            EngineError: the engine stopped.
        """
        self._frontend.loop.drive(done, stop)

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far. Waits for the step that is running, if one is."""
        return self._frontend.metrics()

    def close(self) -> None:
        """Free the engine; what is unfinished fails. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _raises(on_error: OnError) -> bool:
    if on_error not in ("output", "raise"):
        raise ConfigError(
            "unknown way of handling errors",
            field="on_error",
            value=on_error,
            allowed="'output' or 'raise'",
        )
    return on_error == "raise"
