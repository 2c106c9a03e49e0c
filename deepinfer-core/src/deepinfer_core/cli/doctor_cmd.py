"""`deepinfer doctor`: what this machine has, what is missing, and the remedy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.doctor_checks import examine

_COLORS = {"ok": "green", "note": "yellow", "error": "red"}


def register(app: typer.Typer) -> None:
    """Add `deepinfer doctor`."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at Python, torch, plugins, devices, memory, threads and extras.

    Exits with 1 if something is broken.

    Examples:

      deepinfer doctor

      deepinfer doctor --json
    """
    findings = examine()
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        table = Table(title="deepinfer doctor")
        for column in ("what", "status", "found", "remedy"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            color = _COLORS[finding.status]
            status = f"[{color}]{finding.status}[/{color}]"
            table.add_row(finding.name, status, finding.value, finding.remedy)
        Console(highlight=False).print(table)
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)
