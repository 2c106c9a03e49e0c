"""What the commands of `deepinfer bench` share: the model, lists of sizes, tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from deepinfer_core.config import EngineConfig
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.errors import ConfigError

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Directory, GGUF file or hub id; or --model.", show_default=False
    ),
]


def with_model(
    engine: ResolvedConfig,
    path: str | None,
    configure: Callable[[ResolvedConfig], EngineConfig] = lambda resolved: resolved.config,
) -> EngineConfig:
    """The configuration with the model that was named, once, as an argument or a setting.

    Args:
        configure: what makes a configuration of what was given.
    """
    source = engine.sources["model.model"]
    config = configure(engine)
    if path is None:
        if source == "nowhere":
            raise ConfigError("no model: give a path, as an argument or with --model")
        return config
    if source.startswith("flag"):
        raise ConfigError("given twice", field="model.model", value=path, source=source)
    tree = config.model_dump()
    tree["model"]["model"] = path
    return EngineConfig.from_tree(tree)


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers above 0, separated by commas, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        allowed = "numbers above 0, separated by commas"
        raise ConfigError("not a list of sizes", field=option, value=text, allowed=allowed)
    return tuple(dict.fromkeys(int(part) for part in parts))


def table(title: str, *columns: str) -> Table:
    """An empty table of numbers."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column, justify="right", no_wrap=True)
    return made


def row(table: Table, *cells: object) -> None:
    """Add a row of numbers and words."""
    table.add_row(*(number(cell) if isinstance(cell, float) else str(cell) for cell in cells))


def number(value: float) -> str:
    """With three digits, or as a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
