"""`deepinfer config explain`: every setting, its value, where it came from, what it means."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.options import JsonOption, with_options
from deepinfer_core.cli.render import print_json
from deepinfer_core.config_sources import ResolvedConfig, explain


def register(app: typer.Typer) -> None:
    """Add `deepinfer config explain`."""
    config = typer.Typer(help="Look at settings.", no_args_is_help=True)
    # A callback keeps `explain` a subcommand, although it is the only one.
    config.callback()(lambda: None)
    config.command("explain")(with_options(explain_config, model_required=False))
    app.add_typer(config, name="config")


def explain_config(engine: ResolvedConfig, as_json: JsonOption = False) -> None:
    """Show every setting, its value, and where it came from. Loads nothing.

    Options win over DEEPINFER_* variables, they over the --config file, that over defaults.

    Examples:

      deepinfer config explain --model model.gguf

      DEEPINFER_MAX_NUM_SEQS=8 deepinfer config explain -m model.gguf --config engine.toml

      deepinfer config explain -m model.gguf --set cache.block_size=32 --json
    """
    rows = explain(engine)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = Table(title="settings")
    for column in ("field", "value", "from", "what it is"):
        table.add_column(column, overflow="fold")
    for row in rows:
        style = None if row.source == "default" else "bold"
        table.add_row(row.path, str(row.value), row.source, row.doc, style=style)
    Console(highlight=False).print(table, markup=False)
