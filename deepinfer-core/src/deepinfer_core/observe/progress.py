"""One way to show progress: a bar on standard error while something long runs.

Knows nothing of what runs. Nothing is shown where standard error is no terminal, so that logs and
pipes stay clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


class Advance(Protocol):
    """Moves a bar. Thread-safe."""

    def __call__(self, count: int, note: str = "") -> None:
        """So much more is done; `note` stands at the end of the bar from now on."""
        ...


@contextmanager
def progress_bar(
    title: str, total: int | None, *, enabled: bool = True, console: Console | None = None
) -> Iterator[Advance]:
    """Show a bar while the block runs, and give it a function that moves it.

    Args:
        title: what is going on, such as `loading weights`.
        total: how much there is to do in the units of `Advance`; None: not known.
        enabled: False shows nothing, whatever the terminal.
        console: default: standard error.

    The bar is removed when the block ends, also by an error.
    """
    console = console or Console(stderr=True)
    if not (enabled and console.is_terminal):  # a disabled bar still writes an empty line
        yield _ignore
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, note="")

        def advance(count: int, note: str = "") -> None:
            progress.update(task, advance=count, note=note)

        yield advance


def _ignore(count: int, note: str = "") -> None:
    """Move no bar."""
