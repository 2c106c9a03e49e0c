"""Paths of a batch job: what may be overwritten, and how the output appears all at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from deepinfer_core.errors import ConfigError, PlatformError


def journal_path(output: Path) -> Path:
    """Where the journal of an output lies: beside it."""
    return output.with_name(output.name + ".journal")


def check_paths(
    source: Path, output: Path, *, resume: bool = False, overwrite: bool = False
) -> None:
    """Refuse an input that cannot be read, and whatever would overwrite or mix up results.

    Args:
        overwrite: results of an earlier job may go.

    Raises:
        ConfigError: says which file is in the way and what to do.
    """
    journal = journal_path(output)
    try:
        source.open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"cannot read the batch file: {error.strerror}", field="input", value=str(source)
        ) from error
    if output.exists() and os.path.samefile(source, output):
        raise ConfigError("input and output are the same file", field="output", value=str(output))
    if output.is_dir() or not output.parent.is_dir():
        problem = "is a directory" if output.is_dir() else "lies in a directory that does not exist"
        raise ConfigError(f"the output {problem}", field="output", value=str(output))
    if overwrite:
        return
    if resume and output.exists() and not journal.exists():
        raise ConfigError(
            f"there is nothing to resume: {output.name} exists but its journal {journal.name} "
            "does not; choose another output or delete it",
            field="output",
            value=str(output),
        )
    if not resume and journal.exists():
        raise ConfigError(
            "an earlier job left its journal here; continue it with --resume, or delete "
            f"{journal.name} to start over",
            field="output",
            value=str(output),
        )
    if not resume and output.exists():
        raise ConfigError(
            "the output exists; choose another or delete it", field="output", value=str(output)
        )


def write_output(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file that appears complete or not at all.

    Raises:
        PlatformError: it cannot be written; nothing is left behind.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PlatformError(
            f"cannot write {path}: {error.strerror}; every result is in the journal beside it. "
            "Make room, then run the same command with --resume"
        ) from error


def _sync_directory(path: Path) -> None:
    """Make a rename survive a loss of power, where directories can be synced."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
