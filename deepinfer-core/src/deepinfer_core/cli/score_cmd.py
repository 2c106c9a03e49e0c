"""`deepinfer score`: how likely a model finds given continuations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli import render
from deepinfer_core.cli.loading import open_llm
from deepinfer_core.cli.options import JsonOption, with_options
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.jobs.results import error_json
from deepinfer_core.jobs.rows import load_row


def register(app: typer.Typer) -> None:
    """Add `deepinfer score`."""
    app.command("score")(with_options(score))


def score(
    engine: ResolvedConfig,
    continuations: Annotated[
        list[str] | None, typer.Argument(help="Texts to score.", show_default=False)
    ] = None,
    context: Annotated[str, typer.Option(help="What stands before each of them.")] = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", help='JSONL of {"context", "continuation"} instead; text or ids.'),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Log-likelihood, in nats, of continuations after a context, and whether greedy gives them.

    A continuation begins with its space, if it has one: "Paris" is another text than " Paris".

    Examples:

      deepinfer score -m model.gguf --context "The capital of France is" " Paris" " Rome"

      deepinfer score -m model.gguf --file pairs.jsonl --json
    """
    if (file is None) == (not continuations):
        raise ConfigError("give either continuations or --file")
    pairs = list(_read_pairs(file)) if file else [(context, text) for text in continuations or ()]
    with open_llm(engine) as llm:
        scores = llm.score([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    results = [
        {"error": error_json(s.error)}
        if s.error is not None
        else {
            "total_logprob": s.total_logprob,
            "is_greedy": s.is_greedy,
            "num_context_tokens": s.num_context_tokens,
            "token_ids": s.token_ids,
            "logprobs": s.logprobs,
        }
        for s in scores
    ]
    named = [
        {"context": pair[0], "continuation": pair[1], **result}
        for pair, result in zip(pairs, results, strict=True)
    ]
    if as_json:
        render.print_json(named)
    else:
        _print_table(named)
    if any(s.error is not None for s in scores):
        raise typer.Exit(1)


def _read_pairs(file: Path) -> Iterator[tuple[Any, Any]]:
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", field="--file", value=str(file)
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = load_row(line)
        except RequestError as error:
            raise ConfigError(f"line {number}: {error}", source=str(file)) from None
        if set(row) != {"context", "continuation"}:
            raise ConfigError(
                f"line {number} has {', '.join(sorted(row)) or 'nothing'}",
                allowed="exactly context and continuation",
                source=str(file),
            )
        yield row["context"], row["continuation"]


def _print_table(results: list[dict[str, Any]]) -> None:
    table = Table()
    for column in ("continuation", "log-likelihood", "tokens", "greedy"):
        table.add_column(column, overflow="fold")
    for result in results:
        if "error" in result:
            table.add_row(repr(result["continuation"]), result["error"]["message"], "", "")
            continue
        table.add_row(
            repr(result["continuation"]),
            f"{result['total_logprob']:.4f}",
            str(len(result["token_ids"])),
            "yes" if result["is_greedy"] else "no",
        )
    Console(highlight=False).print(table, markup=False)
