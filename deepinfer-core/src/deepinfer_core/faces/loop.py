"""`EngineLoop`: the one place that drives an engine, from the caller's thread or from its own.

Knows no text. Between two steps it runs what callers asked for; after each step it hands the
requests that moved to whoever watches them. Without an engine thread whoever waits takes turns
at driving; once the thread runs, it alone drives and the others wait.
INVARIANT: every engine call happens under `_lock`, and nobody waits for anything under it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Protocol, TypeVar

from deepinfer_core.errors import DeepInferError, EngineError, RequestError
from deepinfer_core.faces.protocol import EngineProtocol
from deepinfer_core.request import Request

T = TypeVar("T")
_TURN_WAIT_S = 0.05
"""How long a caller waits for its turn before it looks again whether its work is done."""


class Watcher(Protocol):
    """Whoever wants to know about a request."""

    needs_every_step: bool
    """False: told only when the request has finished, which costs nothing per step."""

    def update(self, request: Request) -> None:
        """The request gained tokens or finished. Must not block."""
        ...

    def fail(self, error: DeepInferError) -> None:
        """The engine stopped; nothing more will come. Must not block."""
        ...


class EngineLoop:
    """Drives `engine` for many callers. All methods but `turn`'s own parts are thread-safe."""

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine = engine
        self.num_steps = 0
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        # Finalisers may run in the middle of any call, this queue's own included: an Event would
        # wait for the lock that its own interrupted call holds, a SimpleQueue has none.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._every_step: dict[int, Watcher] = {}
        self._at_end: dict[int, Watcher] = {}
        self._thread: threading.Thread | None = None
        self._thread_drives = False
        """What is posted will be run by the engine thread."""
        self._closing = self._closed = False
        self._failure: DeepInferError | None = None

    def watch(self, request: Request, watcher: Watcher) -> None:
        """Tell `watcher` about `request`. Call it inside `call` or `post`."""
        table = self._every_step if watcher.needs_every_step else self._at_end
        table[request.request_id] = watcher

    def unwatch(self, request: Request) -> None:
        """Forget a request; unknown ones are fine."""
        self._every_step.pop(request.request_id, None)
        self._at_end.pop(request.request_id, None)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` between two steps and return what it returns. Blocks up to one step.

        Raises:
            EngineError: the engine has stopped or is closed.
        """
        return self.submit(function).result()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """As `call`, without waiting."""
        self._check_alive()
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                self._check_alive()
                future.set_result(function())
            except BaseException as error:  # handed to the caller, whatever it is
                future.set_exception(error)

        self.post(run)
        return future

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` between two steps; never waits, so that finalisers may call it."""
        self._inbox.append(function)
        self._wake()
        # INVARIANT: beside an engine thread nothing else happens here, for a finaliser may have
        # interrupted a call that holds a lock which one of the posted functions needs.
        if not self._thread_drives:
            self._serve()

    def settle(self) -> None:
        """Wait until everything posted so far has run, also on an engine that has stopped."""
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.post(lambda: done.put(None))
        done.get()

    def drive(self, done: threading.Event, stop: Callable[[], bool] = lambda: False) -> None:
        """Return once `done` is set or `stop()` is true; step the engine unless its thread does.

        Raises:
            EngineError: the engine stopped.
        """
        while not done.is_set() and not stop():
            if self._thread is not None:
                done.wait(_TURN_WAIT_S)
            elif self._lock.acquire(timeout=_TURN_WAIT_S):
                try:
                    if self._thread is None:
                        self.turn()
                finally:
                    self._lock.release()
                self._serve()
            if self._failure is not None:
                raise self._failure

    def start_thread(self) -> None:
        """Let a thread of its own drive the engine until `close`. Idempotent; never waits."""
        if self._thread is None:
            self.post(self._start_thread)

    def close(self) -> None:
        """Stop the thread and close the engine; what is unfinished fails. Idempotent."""
        self._closing = True
        self._wake()
        if self._thread is threading.current_thread():
            return  # a finaliser that ran inside a step; `_run` closes when the step is over
        if self._thread is not None:
            self._thread.join()
        self._close_engine()

    def turn(self) -> bool:
        """Run what was asked for, then one step. The caller holds the lock.

        Returns:
            Whether there was anything to step.
        """
        self._drain()
        if self._failure is not None or not self.engine.has_unfinished:
            return False
        try:
            result = self.engine.advance()
            self.num_steps += 1
            for request in result.updated:
                watcher = self._every_step.get(request.request_id)
                if watcher is not None:
                    watcher.update(request)
            for request in result.finished:
                watcher = self._every_step.pop(request.request_id, None)
                watcher = watcher or self._at_end.pop(request.request_id, None)
                if watcher is not None:
                    watcher.update(request)
        except BaseException as error:  # a step that was cut short leaves no state to go on from
            failure = _as_engine_error(error)
            self._fail(failure)
            if failure is error or not isinstance(error, Exception):
                raise
            raise failure from error
        return True

    def _start_thread(self) -> None:
        if self._thread is None and self._failure is None:
            self._thread = threading.Thread(target=self._run, name="deepinfer-engine", daemon=True)
            self._thread_drives = True
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing and self._failure is None:
                self._run_until_idle()
            if self._closing:
                self._close_engine()
        finally:
            self._thread_drives = False
            self._serve()

    def _run_until_idle(self) -> None:
        while not self._wakeups.empty():
            self._wakeups.get()
        # `turn` has told every watcher of an error, and `submit` raises it from then on.
        with self._lock, suppress(Exception):
            if self.turn() or self._closing:
                return
        if not self._inbox and self._failure is None:
            self._wakeups.get()

    def _close_engine(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                failed_before = self._failure is not None
                self._fail(EngineError("the engine was closed"))
                # What a failed engine says when it is closed adds nothing to its first error.
                with suppress(Exception) if failed_before else nullcontext():
                    self.engine.close()
        self._serve()

    def _wake(self) -> None:
        if self._wakeups.empty():  # else the thread has yet to look
            self._wakeups.put(None)

    def _serve(self) -> None:
        """Drain the inbox unless another thread holds the lock; that one looks again itself."""
        while self._inbox and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _fail(self, error: DeepInferError) -> None:
        self._failure = self._failure or error
        watchers = {id(w): w for w in (*self._every_step.values(), *self._at_end.values())}
        self._every_step.clear()
        self._at_end.clear()
        for watcher in watchers.values():
            watcher.fail(error)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the engine has stopped: {self._failure}") from self._failure


def _as_engine_error(error: BaseException) -> DeepInferError:
    if isinstance(error, DeepInferError) and not isinstance(error, RequestError):
        return error  # a request's error would tell every caller that only a request failed
    return EngineError(f"the engine stopped: {type(error).__name__}: {error}")
