"""The append-only journal of a batch job: a result that is in it is final.

    deepinfer-batch-1 <crc> <settings as JSON>
    <key, 32 hex digits> <crc of the result, 8 hex digits> <result as JSON>
    ...

A process may be killed at any byte: the last line may be torn, no other. Knows nothing of rows
or models; keys are opaque.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ConfigError, PlatformError
from deepinfer_core.jobs.index import KEY_BYTES
from deepinfer_core.jobs.locking import lock_file

_MAGIC = b"deepinfer-batch-1"
_KEY_END = 2 * KEY_BYTES
_RESULT_START = _KEY_END + 1 + 8 + 1
_BINARY = getattr(os, "O_BINARY", 0)
"""Where systems translate line ends, offsets and checksums would not survive it."""


class Journal:
    """Owns one journal file, locked while it is open.

    Attributes:
        keys, offsets: of the results that the file held when it was opened; `KEY_BYTES` bytes
            and one file offset for each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = bytearray()
        self.offsets: array[int] = array("Q")
        self._fd = _open(path)
        self._end = 0
        self._unsynced = False

    def start(self, settings: dict[str, Any]) -> None:
        """Write the header of a new job; an older, empty or torn file is overwritten."""
        self._end = 0
        self._truncate()
        header = _dumps(settings)
        self._write(b"%s %08x %s\n" % (_MAGIC, zlib.crc32(header), header))
        self.sync()

    def load(self) -> dict[str, Any] | None:
        """Read what an earlier run left and cut a torn last line.

        Returns:
            The settings of that run, or None when it did not get as far as writing them.

        Raises:
            ConfigError: this is no journal, or a line before the last one is damaged.
        """
        settings: dict[str, Any] | None = None
        with self.path.open("rb") as file:
            for number, (line, is_last) in enumerate(_with_last(file), start=1):
                problem = self._load_line(line) if number > 1 else _header_problem(line)
                if problem and not is_last:
                    raise ConfigError(
                        f"line {number} of the journal is damaged ({problem}); "
                        "delete the journal to start over",
                        field="journal",
                        value=str(self.path),
                    )
                if problem:
                    break
                if number == 1:
                    settings = json.loads(line.split(b" ", 2)[2])
                self._end += len(line)
        self._truncate()
        return settings

    def append(self, key: bytes, result: dict[str, Any]) -> int:
        """Record a result; it survives the end of this process, and after `sync` of the machine.

        Returns:
            Where it is, for `read`.

        Raises:
            PlatformError: the file cannot grow. What was journaled before stays.
        """
        payload = _dumps(result)
        offset = self._end
        self._write(b"%s %08x %s\n" % (key.hex().encode(), zlib.crc32(payload), payload))
        return offset

    def read(self, offsets: Iterable[int]) -> Iterator[bytes]:
        """The results at `offsets`, each as one JSON line with its line end."""
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield file.readline()[_RESULT_START:]

    def sync(self) -> None:
        """Wait until everything appended is on the disk."""
        if self._unsynced:
            self._guarded(os.fsync, self._fd)
            self._unsynced = False

    def close(self) -> None:
        """Release the file and its lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _load_line(self, line: bytes) -> str | None:
        if not line.endswith(b"\n"):
            return "incomplete"
        crc = b"%08x" % zlib.crc32(line[_RESULT_START:-1])
        if line[_KEY_END + 1 : _RESULT_START - 1] != crc:
            return "checksum differs"
        try:
            self.keys += bytes.fromhex(line[:_KEY_END].decode("ascii"))
        except ValueError:
            return "key is not hexadecimal"
        self.offsets.append(self._end)
        return None

    def _truncate(self) -> None:
        self._guarded(os.ftruncate, self._fd, self._end)

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[self._guarded(os.write, self._fd, view) :]
        self._end += len(line)
        self._unsynced = True

    def _guarded(self, function: Any, *args: Any) -> int:
        try:
            written = function(*args)
        except OSError as error:
            raise PlatformError(
                f"cannot write the journal {self.path}: {error.strerror}; what it holds so far "
                f"({self._end:,} bytes) stays. Make room, then run the same command with --resume"
            ) from error
        return written or 0


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
    except OSError as error:
        raise ConfigError(
            f"cannot write there: {error.strerror}", field="output", value=str(path)
        ) from error
    problem = None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        problem = "the journal is not a regular file; choose another output path"
    elif not lock_file(fd):
        problem = "another process is working on this job; wait for it or choose another output"
    if problem:
        os.close(fd)
        raise ConfigError(problem, field="journal", value=str(path))
    return fd


def _header_problem(line: bytes) -> str | None:
    parts = line.rstrip(b"\n").split(b" ", 2)
    if not line.endswith(b"\n"):
        return "incomplete"
    if len(parts) != 3 or parts[0] != _MAGIC:
        return "not a batch journal"
    return None if parts[1] == b"%08x" % zlib.crc32(parts[2]) else "checksum differs"


def _with_last(file: Any) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is the last one."""
    previous: bytes | None = None
    for line in file:
        if previous is not None:
            yield previous, False
        previous = line
    if previous is not None:
        yield previous, True


def _dumps(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # an id may hold half a character; JSON can escape it
        return json.dumps(value, separators=(",", ":")).encode()
