"""A bar where a person looks, nothing anywhere else."""

from __future__ import annotations

import io

import pytest
from deepinfer_core.observe.progress import progress_bar
from rich.console import Console


def shown(*, terminal: bool, enabled: bool, total: int | None = 4) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    with progress_bar("loading weights", total, enabled=enabled, console=console) as advance:
        advance(3, "12 per second")
    return file.getvalue()


def test_a_terminal_shows_title_and_note() -> None:
    text = shown(terminal=True, enabled=True)
    assert "loading weights" in text and "12 per second" in text
    assert "loading weights" in shown(terminal=True, enabled=True, total=None)


def test_pipes_and_the_uninterested_see_nothing() -> None:
    assert shown(terminal=False, enabled=True) == ""
    assert shown(terminal=True, enabled=False) == ""


def test_an_error_within_passes_through() -> None:
    with pytest.raises(ValueError, match="inside"), progress_bar("x", 1, enabled=False):
        raise ValueError("inside")


def test_the_bar_is_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that this is a terminal
    with progress_bar("loading weights", 1) as advance:
        advance(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "loading weights" in err
