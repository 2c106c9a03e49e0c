"""One request as a stream of deltas: an iterator for threads, an async one for event loops.

Whoever stops listening (closes, breaks off, is cancelled or forgets the stream) aborts the
request. Both need the engine thread.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self

from deepinfer_core.errors import DeepInferError, EngineError
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.generation import Generation
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.outputs import OutputDelta, RequestOutput
from deepinfer_core.sampling_params import SamplingParams

Item = OutputDelta | Generation
"""A generation ends the stream."""
_WAIT_S = 0.1
"""How long a reader is deaf to Ctrl-C at most."""


class TokenStream(Iterator[OutputDelta]):
    """Deltas of one request, as they come. `close` ends it early; so does losing the object.

    Raises, from `next`:
        RequestError: the request failed after it had begun.
        EngineError: the engine stopped.
    """

    def __init__(
        self,
        frontend: Frontend,
        encoded: EncodedPrompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        request_id: str | None = None,
    ) -> None:
        self.request_id = request_id or frontend.new_request_id()
        self.output: RequestOutput | None = None
        """The whole result, once the stream has ended."""
        self._frontend = frontend
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._closed = True
        frontend.loop.start_thread()
        put = self._items.put
        start = frontend.start(
            encoded,
            params,
            on_done=put,
            on_delta=put,
            priority=priority,
            request_id=self.request_id,
        )
        try:
            start.result()
        except BaseException:  # Ctrl-C, too
            _abandon(frontend, start)
            raise
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> OutputDelta:
        if self._closed:
            raise StopIteration
        item = self._next_item()
        if isinstance(item, Generation):
            self._closed = True
            self.output = end_of_stream(item)
            raise StopIteration
        return item

    def _next_item(self) -> Item:
        while True:
            # Not without a limit: on Windows Ctrl-C is not heard during such a wait.
            with suppress(queue.Empty):
                return self._items.get(timeout=_WAIT_S)

    def close(self) -> None:
        """End the request if it is still running. Idempotent."""
        if not self._closed:
            self._closed = True
            self._frontend.abort(self.request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


async def stream_async(
    frontend: Frontend,
    encoded: EncodedPrompt,
    params: SamplingParams,
    *,
    priority: int = 0,
    request_id: str | None = None,
) -> AsyncGenerator[OutputDelta, None]:
    """As `TokenStream`, without ever blocking the event loop.

    Raises:
        RequestError, EngineError: as `TokenStream`.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Item] = asyncio.Queue()
    name = request_id or frontend.new_request_id()

    def put(item: Item) -> None:
        try:
            loop.call_soon_threadsafe(items.put_nowait, item)
        except RuntimeError:  # the event loop is gone, and whoever listened with it
            frontend.abort(name)

    frontend.loop.start_thread()
    start = frontend.start(
        encoded, params, on_done=put, on_delta=put, priority=priority, request_id=name
    )
    finished = False
    try:
        await asyncio.wrap_future(start)
        while True:
            item = await items.get()
            if isinstance(item, Generation):
                finished = True
                end_of_stream(item)
                return
            yield item
    finally:
        if not finished:
            _abandon(frontend, start)


def end_of_stream(generation: Generation) -> RequestOutput:
    """The result of a generation that is done, or the error that ended it."""
    if generation.failure is not None:
        raise _again(generation.failure)
    output = generation.output()
    if output.error is not None:
        raise output.error
    return output


def _abandon(frontend: Frontend, start: Future[Generation]) -> None:
    """End a request that nobody listens to, once it has started; one that was refused has not.

    A refused name is somebody else's, who goes on.
    """

    def end(start: Future[Generation]) -> None:
        if not start.cancelled() and start.exception() is None:
            frontend.abort(start.result().request_id)

    start.add_done_callback(end)


def _again(failure: DeepInferError) -> EngineError:
    error = EngineError(f"the engine has stopped: {failure}")
    error.__cause__ = failure
    return error
