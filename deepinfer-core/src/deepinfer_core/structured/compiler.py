"""`GrammarCompiler`: forms of answers to compiled grammars, beside the engine's loop.

Owns the threads that compile, their time limit, and what was compiled lately. The backend is made
when the first grammar needs it: that takes a second on a large vocabulary.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

from deepinfer_core.errors import GrammarError
from deepinfer_core.plugin_api.grammar import CompiledGrammar, GrammarBackend
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput

Compiled: TypeAlias = "Future[CompiledGrammar]"
MAX_THREADS = 2


@dataclass(slots=True)
class CompileCounts:
    """What compiling has cost; times in seconds."""

    num_compiled: int = 0
    num_hits: int = 0
    compile_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Job:
    spec: StructuredOutput
    future: Compiled = field(default_factory=Future)
    is_given_up: bool = False


class GrammarCompiler:
    """Compiles for one vocabulary. Thread-safe.

    Args:
        make_backend: makes what compiles grammars that name tokens, or else all others; called
            once for each, on a thread of the compiler's.
        marks: what stands for each token that may be named.
        timeout_s: of one grammar.
        max_grammars: that are kept when nobody uses them.
        max_whitespace: for those that do not say.
    """

    def __init__(
        self,
        make_backend: Callable[[bool], GrammarBackend],
        *,
        marks: Mapping[str, str],
        timeout_s: float,
        max_grammars: int,
        max_whitespace: int,
    ) -> None:
        self._make_backend = make_backend
        self._backends: dict[bool, GrammarBackend] = {}
        self._marks = marks
        self._timeout_s = timeout_s
        self._max_grammars = max_grammars
        self._max_whitespace = max_whitespace
        self._known: WeakValueDictionary[StructuredOutput, Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[StructuredOutput, Compiled] = OrderedDict()
        self._jobs: deque[_Job] = deque()
        self._num_threads = 0
        """That take jobs; one that is stuck in a grammar counts no more."""
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self.counts = CompileCounts()

    def compile(self, spec: StructuredOutput) -> Compiled:
        """The grammar of a form, which may be there already or take a while.

        Whoever holds the future is served from it, however many others come in between.

        Returns:
            A future; it raises GrammarError if the form is malformed or cannot be enforced, if
            compiling takes too long, or if there is no backend.
        """
        with self._lock:
            known = self._known.get(spec)
            if known is not None and not (known.done() and known.exception()):
                self.counts.num_hits += 1
                self._keep(spec, known)
                return known
            job = _Job(spec)
            self._known[spec] = job.future
            self._keep(spec, job.future)
            self._jobs.append(job)
            if self._num_threads < MAX_THREADS:
                self._start_thread()
        return job.future

    def _keep(self, spec: StructuredOutput, future: Compiled) -> None:
        self._recent[spec] = future
        self._recent.move_to_end(spec)
        while len(self._recent) > self._max_grammars:
            self._recent.popitem(last=False)

    def _start_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._work, name="deepinfer-grammar", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._num_threads -= 1
                    return
                job = self._jobs.popleft()
            self._run(job)
            with self._lock:
                if job.is_given_up:  # another thread has taken this one's place
                    return

    def _run(self, job: _Job) -> None:
        limit = threading.Timer(self._timeout_s, self._give_up, (job,))
        limit.daemon = True
        try:
            backend = self._get_backend(job.spec.markup is not None)
            limit.start()
            begun_s = time.perf_counter()
            compiled = self._compile(job.spec, backend)
            elapsed_s = time.perf_counter() - begun_s
        except GrammarError as error:
            _settle(job.future, error)
        except Exception as error:  # a plugin's border; whatever it raises ends one request
            _settle(job.future, _refused(job.spec, error))
        else:
            with self._lock:
                self.counts.num_compiled += 1
                self.counts.compile_s += elapsed_s
            _settle(job.future, compiled)
        finally:
            limit.cancel()

    def _compile(self, spec: StructuredOutput, backend: GrammarBackend) -> CompiledGrammar:
        notation, text = to_notation(spec, max_whitespace=self._max_whitespace, marks=self._marks)
        if notation not in backend.notations:
            raise GrammarError(
                f"structured.{spec.form}: the grammar backend does not read {notation}; choose "
                "another with structured.grammar_backend",
                field=f"structured.{spec.form}",
            )
        return backend.compile(notation, text)

    def _get_backend(self, names_tokens: bool) -> GrammarBackend:
        with self._making:
            if names_tokens not in self._backends:
                self._backends[names_tokens] = self._make_backend(names_tokens)
            return self._backends[names_tokens]

    def _give_up(self, job: _Job) -> None:
        # The thread cannot be stopped. What it finds in the end is dropped, and it ends itself.
        with self._lock:
            if job.future.done():
                return
            job.is_given_up = True
            self._num_threads -= 1
            self._start_thread()
        error = GrammarError(
            f"structured.{job.spec.form} took longer than {self._timeout_s:g} s to compile; "
            "simplify it, or raise structured.compile_timeout_s",
            field=f"structured.{job.spec.form}",
        )
        _settle(job.future, error)


def _settle(future: Compiled, outcome: CompiledGrammar | GrammarError) -> None:
    with suppress(InvalidStateError):  # it came too late
        if isinstance(outcome, GrammarError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _refused(spec: StructuredOutput, error: Exception) -> GrammarError:
    refusal = GrammarError(
        f"structured.{spec.form} cannot be compiled: {error}; see docs/structured.md for what "
        "can be",
        field=f"structured.{spec.form}",
    )
    refusal.__cause__ = error
    return refusal
