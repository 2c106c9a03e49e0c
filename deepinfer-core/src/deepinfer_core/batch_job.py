"""Offline batch: a JSONL file in, a JSONL file out, nothing lost and nothing done twice.

Rows stream through a bounded window; each result goes to an append-only journal the moment it
exists, and the output is written from the journal, in input order, once all rows are done. Knows
the faces of an engine, not the engine.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.interrupt import catch_interrupt
from deepinfer_core.jobs.files import check_paths, journal_path, write_output
from deepinfer_core.jobs.index import RowIndex, index_rows, match_keys, read_row
from deepinfer_core.jobs.journal import Journal
from deepinfer_core.jobs.results import is_error_line, row_error, row_result
from deepinfer_core.jobs.rows import BatchRow, RowFormat, format_of, load_row, parse_row, row_id_of
from deepinfer_core.jobs.settings import check_same_settings, hash_settings, job_settings
from deepinfer_core.llm import LLM
from deepinfer_core.outputs import RequestOutput

_SYNC_INTERVAL_S = 1.0
"""What a loss of power may cost; a killed process loses nothing."""


@dataclass(slots=True)
class BatchSummary:
    """How a job stands. Tokens and seconds are of this run alone."""

    num_rows: int = 0
    num_done: int = 0
    """Rows with a result in the journal, errors included."""
    num_resumed: int = 0
    """Of those, the ones that an earlier run had done."""
    num_errors: int = 0
    """Of those with a result, the ones that ended with an error, in whichever run."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    elapsed_s: float = 0.0
    interrupted: bool = False


Report = Callable[[BatchSummary], None]


def run_batch(
    llm: LLM,
    source: Path | str,
    output: Path | str,
    *,
    resume: bool = False,
    defaults: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> BatchSummary:
    """Serve every row of `source` and write one line for each to `output`, in input order.

    A row without a seed gets one from its own content, so that a job that was stopped and resumed
    gives the bytes of one that was not. Ctrl-C ends the job cleanly; what is done stays done.

    Args:
        resume: continue the job whose journal lies beside `output`, or start it.
        defaults: sampling parameters for rows that do not give their own.
        report: called after each row.

    Raises:
        ConfigError: a path cannot be used, or the settings changed since the job began.
        PlatformError: journal or output cannot be written, as on a full disk. What the journal
            holds stays; the same command with `resume` goes on.
    """
    source, output = Path(source), Path(output)
    defaults = dict(defaults or {})
    check_paths(source, output, resume=resume)
    settings = job_settings(llm.config, defaults)
    index = index_rows(source, hash_settings(settings))
    journal = Journal(journal_path(output))
    try:
        earlier = journal.load() if resume else None
        if earlier is None:
            journal.start(settings)
        else:
            check_same_settings(earlier, settings)
        job = _Job(llm, index, journal, defaults, report)
        summary = job.run(source)
        if not summary.interrupted:
            write_output(output, journal.read(map(int, job.offsets)))
    finally:
        journal.close()
    return summary


class _Job:
    """One run: which rows are done, which are in flight."""

    def __init__(
        self,
        llm: LLM,
        index: RowIndex,
        journal: Journal,
        defaults: dict[str, Any],
        report: Report | None,
    ) -> None:
        self.offsets = match_keys(index, journal.keys, journal.offsets)
        """[num_rows] int64: where in the journal the result of a row is, or -1."""
        self._llm, self._index, self._journal = llm, index, journal
        self._defaults, self._report = defaults, report
        done = self.offsets[self.offsets >= 0]
        num_errors = sum(map(is_error_line, journal.read(map(int, done))))
        self._summary = BatchSummary(
            len(index), len(done), num_resumed=len(done), num_errors=num_errors
        )
        self._finished: queue.SimpleQueue[tuple[int, BatchRow, RequestOutput]] = queue.SimpleQueue()
        self._some_finished = threading.Event()
        self._in_flight: dict[int, str] = {}
        """Row -> request id."""
        self._started_s = self._synced_s = time.perf_counter()

    def run(self, source: Path) -> BatchSummary:
        window = max(16, 2 * self._llm.config.scheduler.max_num_seqs)
        todo = (row for row in range(len(self._index)) if self.offsets[row] < 0)
        try:
            with source.open("rb") as file, catch_interrupt() as interrupted:
                rows = ((row, read_row(file, self._index, row)) for row in todo)
                while not interrupted():
                    self._fill(rows, window)
                    if not self._in_flight:
                        break
                    self._llm.drive(self._some_finished, interrupted)
                    self._collect()
                self._summary.interrupted = interrupted()
        finally:
            for request_id in self._in_flight.values():
                self._llm.abort(request_id)
        self._journal.sync()
        self._summary.elapsed_s = time.perf_counter() - self._started_s
        return self._summary

    def _fill(self, rows: Iterator[tuple[int, bytes]], window: int) -> None:
        """Start rows until the window is full; those that cannot start are done with an error."""
        while len(self._in_flight) < window:
            row, line = next(rows, (-1, b""))
            if row < 0:
                return
            self._start(row, line)

    def _start(self, row: int, line: bytes) -> None:
        row_id: object = None
        row_format: RowFormat = "plain"
        try:
            decoded = load_row(line)
            row_format = format_of(decoded)
            row_id = row_id_of(decoded)
            if row_id is None:
                row_id = self._index.line_numbers[row]
            self._check_unique(row, row_id)
            request = parse_row(decoded, row_id, self._defaults)
            self._submit(row, request)
        except RequestError as error:
            self._record_error(row, row_id, row_format, error)

    def _check_unique(self, row: int, row_id: object) -> None:
        first = self._index.duplicates.get(row)
        if first is not None:
            raise RequestError(
                f"id {row_id!r} was already used on line {self._index.line_numbers[first]}",
                field="id",
            )

    def _submit(self, row: int, request: BatchRow) -> None:
        params = request.params
        if params.seed is None:
            seed = int.from_bytes(self._index.key(row)[:8], "little") >> 1
            params = params.model_copy(update={"seed": seed})

        def finished(output: RequestOutput) -> None:
            self._finished.put((row, request, output))
            self._some_finished.set()

        if request.messages is not None:
            encoded = self._llm.encoder.chat(request.messages, **request.chat_options)
        else:
            assert request.prompt is not None  # a row has one or the other
            encoded = self._llm.encoder.prompt(request.prompt)
        self._in_flight[row] = self._llm.submit(encoded, params, finished)

    def _collect(self) -> None:
        """Journal whatever has finished."""
        self._some_finished.clear()
        while not self._finished.empty():
            row, request, output = self._finished.get()
            del self._in_flight[row]
            if output.error is not None:
                self._record_error(row, request.row_id, request.format, output.error)
                continue
            key = self._index.key(row)
            self._summary.num_prompt_tokens += len(output.prompt_token_ids)
            self._summary.num_output_tokens += sum(len(o.token_ids) for o in output.outputs)
            result = row_result(
                request,
                key,
                output,
                model=self._llm.model_name,
                token_bytes=self._llm.tokenizer.token_bytes,
            )
            self._record(row, result)

    def _record_error(
        self, row: int, row_id: object, row_format: RowFormat, error: RequestError
    ) -> None:
        self._summary.num_errors += 1
        line_number = self._index.line_numbers[row]
        key = self._index.key(row)
        self._record(row, row_error(row_id, row_format, key, line_number, error))

    def _record(self, row: int, result: dict[str, Any]) -> None:
        self.offsets[row] = self._journal.append(self._index.key(row), result)
        self._summary.num_done += 1
        now = time.perf_counter()
        if now - self._synced_s > _SYNC_INTERVAL_S:
            self._journal.sync()
            self._synced_s = now
        self._summary.elapsed_s = now - self._started_s
        if self._report is not None:
            self._report(self._summary)
