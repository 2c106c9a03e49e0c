"""Runs jobs in a few processes that stay: each keeps its imports and its kernels.

A job that takes too long is ended, and one that takes its process or the GPU's context with it is
a finding; the process is replaced, and the other jobs still run. Knows nothing of what jobs do.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

Found = dict[str, Any]
"""What a job found: `passed`, and JSON values."""
TAIL = 2000
"""Characters of what a failed job printed that are worth keeping."""


class Job(NamedTuple):
    part: str
    name: str
    target: str
    """`module:function`, which returns what it found."""
    arguments: tuple[Any, ...] = ()


def run_jobs(
    jobs: Iterable[Job], limits_s: Mapping[str, float], num_workers: int
) -> Iterator[tuple[Job, Found]]:
    """What each job found, as they end.

    Args:
        limits_s: of each part, from the start of its first job.
    """
    waiting = deque(jobs)
    workers = [_Worker() for _ in range(min(num_workers, len(waiting)))]
    deadlines: dict[str, float] = {}
    try:
        while waiting or any(worker.job for worker in workers):
            now = time.monotonic()
            for place, worker in enumerate(workers):
                if worker.is_lost:
                    worker.end()
                    workers[place] = worker = _Worker()
                while waiting and worker.job is None:
                    job = waiting.popleft()
                    deadline = deadlines.setdefault(job.part, now + limits_s[job.part])
                    if now < deadline:
                        worker.start(job, deadline)
                    else:
                        yield job, _too_late(limits_s[job.part], "not begun")
            yield from _ended([worker for worker in workers if worker.job], limits_s)
    finally:
        for worker in workers:
            worker.end()


def _ended(busy: list[_Worker], limits_s: Mapping[str, float]) -> Iterator[tuple[Job, Found]]:
    """Wait until some job ends or must be ended."""
    if not busy:
        return
    patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    ready = wait([worker.connection for worker in busy], patience)
    for worker in busy:
        job = worker.job
        assert job is not None
        if worker.connection in ready:
            yield job, worker.take()
        elif time.monotonic() >= worker.deadline:
            worker.is_lost, worker.job = True, None
            yield job, _too_late(limits_s[job.part], "ended")


def _too_late(limit_s: float, what: str) -> Found:
    return {"passed": False, "error": f"{what}: its part has {limit_s:g} s"}


class _Worker:
    """A process and what it is doing."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._output = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed in `end`
            "r+", suffix=".log", errors="replace"
        )
        self._process = context.Process(target=_work, args=(theirs, self._output.name), daemon=True)
        self._process.start()
        theirs.close()
        self.job: Job | None = None
        self.deadline = self._begun = 0.0
        self.is_lost = False

    def start(self, job: Job, deadline: float) -> None:
        self.job, self.deadline, self._begun = job, deadline, time.monotonic()
        self._output.truncate(0)
        try:
            self.connection.send(job)
        except OSError:
            self.is_lost = True  # which `take` tells

    def take(self) -> Found:
        """What the job that ended found."""
        self.job = None
        found: Found
        try:
            found, self.is_lost = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self.is_lost = True
            code = self._process.exitcode
            found = {"passed": False, "error": f"its process ended with code {code}"}
        if not found["passed"]:
            self._output.seek(0)
            found["output"] = self._output.read()[-TAIL:]
        return {**found, "seconds": round(time.monotonic() - self._begun, 1)}

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.connection.close()
        self._output.close()


def _work(connection: Connection, output: str) -> None:
    """Run jobs one after another, until the other side is gone or the GPU's context is."""
    # What compilers print goes by file descriptor, and past the end of what was cut off.
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        found = _run(job)
        sys.stdout.flush()
        if trouble := _lost_context():
            found |= {"passed": False, "error": f"{found.get('error', '')}\n{trouble}"}
        connection.send((found, trouble is not None))
        if trouble:
            return


def _run(job: Job) -> Found:
    module, _, name = job.target.partition(":")
    try:
        found: Found = getattr(importlib.import_module(module), name)(*job.arguments)
    # A job that cannot run is a finding.
    except Exception:
        return {"passed": False, "error": traceback.format_exc()}
    return found


def _lost_context() -> str | None:
    """What a GPU says that answers no more; other jobs want the memory that this one took."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        return str(error)
    return None
