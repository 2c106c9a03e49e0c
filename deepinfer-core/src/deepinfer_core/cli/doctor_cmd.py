"""`deepinfer doctor`: what this machine has or what a model's caches hold, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.doctor_checks import examine
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugin_api import load_target

if TYPE_CHECKING:
    from deepinfer_core.cli.doctor_caches import ModelCaches

_COLORS = {"ok": "green", "note": "yellow", "error": "red"}
# Building a model needs torch, which takes seconds to import.
MEASURE = "deepinfer_core.cli.doctor_caches:measure_caches"
PLAIN = "auto"


def register(app: typer.Typer) -> None:
    """Add `deepinfer doctor`."""
    app.command("doctor")(doctor)


def doctor(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Show what this model's caches hold instead."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a request; default: the model's limit."),
    ] = None,
    kv_format: Annotated[
        str, typer.Option("--kv-format", help="As of the engine, such as 584+132.")
    ] = PLAIN,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at Python, torch, plugins, devices, memory, threads and extras, or at a model's caches.

    Exits with 1 if something is broken. A model needs no weights: a config.json will do.

    Examples:

      deepinfer doctor

      deepinfer doctor --json

      deepinfer doctor --model ./DeepSeek-V4-Flash --context 1000000 --kv-format 584+68
    """
    if model is not None:
        show_caches(load_target(MEASURE)(model, context, kv_format), as_json=as_json)
        return
    if context is not None or kv_format != PLAIN:
        raise ConfigError(
            "--context and --kv-format are about a model",
            field="--model",
            value=None,
            allowed="a directory with a config.json",
        )
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


def show_caches(caches: ModelCaches, *, as_json: bool) -> None:
    """Print what the caches of a request hold."""
    if as_json:
        uses = [
            {**asdict(use), "bytes_per_token": use.bytes_per_token, "fixed_bytes": use.fixed_bytes}
            for use in caches.uses
        ]
        sums = {
            "bytes_per_token": caches.bytes_per_token,
            "fixed_bytes": caches.fixed_bytes,
            "total_bytes": caches.total_bytes,
        }
        typer.echo(json.dumps({**asdict(caches), **sums, "uses": uses}, indent=2))
        return
    table = Table(title=f"caches of {caches.architecture}, kv_format {caches.kv_format}")
    table.add_column("what")
    for column in ("caches", "held as", "bytes a row", "tokens a row", "bytes a token", "fixed"):
        table.add_column(column, justify="right")
    for use in caches.uses:
        numbers = (use.num_caches, use.held_as, use.row_bytes, use.tokens_per_row)
        growth = f"{use.bytes_per_token:,.2f}" if use.window_size is None else ""
        table.add_row(
            use.purpose, *map(str, numbers), growth, f"{use.fixed_bytes:,}" if not growth else ""
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"grows by {caches.bytes_per_token:,.2f} bytes a token; windows and open groups hold "
        f"{caches.fixed_bytes:,} bytes a request"
    )
    console.print(f"at {caches.context:,} tokens: {caches.total_bytes:,} bytes a request")
