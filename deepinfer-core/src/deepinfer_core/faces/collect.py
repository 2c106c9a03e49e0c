"""Many prompts in, all results out, in order: what `generate`, `chat` and `score` share.

A prompt that fails costs nothing but itself. Ctrl-C ends the rest and keeps what is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.generation import Generation, failed_output
from deepinfer_core.faces.interrupt import catch_interrupt
from deepinfer_core.faces.prompts import EncodedPrompt, Params, parse_params, split_params
from deepinfer_core.observe.progress import Advance, progress_bar
from deepinfer_core.outputs import CompletionOutput, RequestOutput


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt, or why there is none, and how it is to be sampled."""

    encoded: EncodedPrompt | RequestError
    params: Params | None = None


def make_jobs(
    encoded: Sequence[EncodedPrompt | RequestError], params: Params | Sequence[Params] | None
) -> list[Job]:
    """Pair prompts with parameters: one for all, or one for each.

    Raises:
        ConfigError: a list of another length.
    """
    each = split_params(params, len(encoded))
    return [Job(e, p) for e, p in zip(encoded, each, strict=True)]


def run_jobs(
    frontend: Frontend,
    jobs: Sequence[Job],
    *,
    priority: int = 0,
    raise_errors: bool = False,
    progress: bool | None = None,
) -> list[RequestOutput]:
    """Run all jobs and return their results in order. Blocks until the last one is done.

    Args:
        raise_errors: raise the first error instead of returning it; the others are aborted.
        progress: show a bar on a terminal; None: if there is more than one prompt.

    Raises:
        RequestError: with `raise_errors`.
        EngineError: the engine stopped.
    """
    shown = len(jobs) > 1 if progress is None else progress
    with progress_bar("generating", len(jobs), enabled=shown) as advance:
        run = _Run(frontend, len(jobs), stop_at_error=raise_errors, advance=advance)
        try:
            with catch_interrupt() as interrupted:
                for index, job in enumerate(jobs):
                    if interrupted() or run.stopped.is_set():
                        break
                    run.start(index, job, priority)
                run.wait_for_starts()
                frontend.loop.drive(run.stopped, interrupted)
        finally:
            run.abort_rest()
    return run.results(jobs)


class _Run:
    """Counts results in. Callbacks come from the driving thread, one at a time."""

    def __init__(
        self, frontend: Frontend, count: int, *, stop_at_error: bool, advance: Advance
    ) -> None:
        self.stopped = threading.Event()
        """Nothing more to wait for: all are done, or one failed and that is enough."""
        self._frontend = frontend
        self._outputs: list[RequestOutput | None] = [None] * count
        self._names: dict[int, str] = {}
        self._starting: list[tuple[int, Job, Future[Generation]]] = []
        self._num_open = count
        self._num_output_tokens = 0
        self._begun_s = time.perf_counter()
        self._lock = threading.Lock()
        self._stop_at_error, self._advance = stop_at_error, advance
        if not count:
            self.stopped.set()

    def start(self, index: int, job: Job, priority: int) -> None:
        """Queue a job. Does not wait for a step, or each job would start a step after the last."""
        name = self._frontend.new_request_id()
        try:
            if isinstance(job.encoded, RequestError):
                raise job.encoded
            params = parse_params(job.params)
        except RequestError as error:
            self._refuse(index, job, error)
            return
        self._names[index] = name
        start = self._frontend.start(
            job.encoded,
            params,
            on_done=lambda generation: self._done(index, generation),
            priority=priority,
            request_id=name,
        )
        self._starting.append((index, job, start))
        if start.done():
            self.wait_for_starts()

    def wait_for_starts(self) -> None:
        """Settle what the engine refused. Waits for the step that is running, if one is."""
        starting, self._starting = self._starting, []
        for index, job, start in starting:
            try:
                start.result()
            except RequestError as error:
                self._refuse(index, job, error)

    def _refuse(self, index: int, job: Job, error: RequestError) -> None:
        text = job.encoded.text if isinstance(job.encoded, EncodedPrompt) else None
        name = self._names.get(index) or self._frontend.new_request_id()
        self._settle(index, failed_output(name, text, error))

    def abort_rest(self) -> None:
        """End what is still running. Waits for that, at most one step."""
        for index, name in self._names.items():
            if self._outputs[index] is None:
                self._frontend.abort(name)
        self._frontend.loop.settle()

    def results(self, jobs: Sequence[Job]) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        for job, output in zip(jobs, self._outputs, strict=True):
            if output is None:
                output = _never_started(self._frontend.new_request_id(), job)
            if output.error is not None and self._stop_at_error:
                raise output.error
            outputs.append(output)
        return outputs

    def _done(self, index: int, generation: Generation) -> None:
        if generation.failure is not None:  # `drive` raises it
            self.stopped.set()
            return
        self._settle(index, generation.output())

    def _settle(self, index: int, output: RequestOutput) -> None:
        with self._lock:
            self._outputs[index] = output
            self._num_open -= 1
            ended = self._num_open == 0 or (output.error is not None and self._stop_at_error)
        self._num_output_tokens += output.metrics.num_output_tokens
        per_s = self._num_output_tokens / (time.perf_counter() - self._begun_s)
        self._advance(1, f"{per_s:,.1f} output tokens/s")
        if ended:
            self.stopped.set()


def _never_started(request_id: str, job: Job) -> RequestOutput:
    """The result of a prompt that Ctrl-C kept from the engine."""
    if isinstance(job.encoded, RequestError):
        return failed_output(request_id, None, job.encoded)
    nothing = CompletionOutput(index=0, text="", token_ids=[], seed=0, finish_reason="abort")
    token_ids = list(job.encoded.token_ids)
    return RequestOutput(request_id, job.encoded.text, token_ids, outputs=[nothing])
