"""`deepinfer verify`: does every feature give the tokens of the plain run?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from deepinfer_core.config import EngineConfig
from deepinfer_core.plugin_api import load_target

if TYPE_CHECKING:
    from deepinfer_core.verify.report import VerifyReport

# Running a model needs torch, which takes seconds to import; other commands should not wait.
VERIFY = "deepinfer_core.verify.report:verify_model"


def register(app: typer.Typer) -> None:
    """Add `deepinfer verify`."""
    app.command("verify")(verify)


def verify(
    model: Annotated[str, typer.Argument(help="Directory, GGUF file or hub id.")],
    points: Annotated[int, typer.Option(help="Random combinations to run.")] = 20,
    seed: Annotated[int, typer.Option(help="Of prompts, parameters and combinations.")] = 0,
    first: Annotated[int, typer.Option(help="Index of the first combination.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each prompt.")] = 16,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="Kind of device; auto takes the best.")] = "auto",
    batch_invariant: Annotated[
        bool,
        typer.Option(help="Demand equal bits; without it close greedy decisions may differ."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run prompts plainly, then under random combinations of features, and compare.

    Features: batch size, arrival order, chunk and block size, prefix cache, preemption, overlap,
    priorities, n, aborts, drafts of several proposers. Exits with 1 on any difference and prints a
    line that reproduces it.

    Examples:

      deepinfer verify model.gguf

      deepinfer verify ./Qwen3-0.6B --points 200 --seed 7 --dtype float32 --json

      deepinfer verify model.gguf --no-batch-invariant
    """
    config = EngineConfig.from_flat(
        model, dtype=dtype, kind=device, batch_invariant=batch_invariant
    )
    report = _run(config, num_points=points, seed=seed, first=first, max_tokens=max_tokens)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print_report(report)
    raise typer.Exit(0 if report.passed else 1)


def _run(config: EngineConfig, **options: int) -> VerifyReport:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("loading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        report: VerifyReport = load_target(VERIFY)(config, progress=progress, **options)
    return report


def _print_report(report: VerifyReport) -> None:
    demand = "equal bits" if report.bound is None else f"equal, or closer than {report.bound:g}"
    title = f"{report.model} in {report.dtype}: {report.num_cases} prompts, {demand}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("point", "batch", "chunk", "block"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("features", ratio=1)
    for column in ("hits", "preempt", "drafts", "equal", "close", "diff"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in report.results:
        point = result.point
        table.add_row(
            str(point.index),
            str(point.batch_size),
            str(point.chunk_tokens),
            str(point.block_size),
            point.features,
            str(result.num_hit_tokens),
            str(result.num_preemptions),
            f"{result.num_accepted_tokens}/{result.num_draft_tokens}",
            str(result.num_equal),
            str(result.num_close),
            f"[red]{result.num_different}[/red]" if result.num_different else "0",
        )
    console = Console()
    console.print(table)
    for result in report.results:
        for difference in result.differences:
            gap = "" if difference.gap is None else f", top two {difference.gap:.2g} apart"
            console.print(
                f"point {result.point.index}: prompt {difference.case} sample {difference.sample}: "
                f"{difference.what} differs at output token {difference.position}{gap}"
            )
        for problem in result.problems:
            console.print(f"point {result.point.index}: [red]{problem}[/red]")
        if not result.passed:
            console.print(f"  again: {report.reproduction(result)}", soft_wrap=True)
    verdict = "[green]all equal[/green]" if report.passed else "[red]differences found[/red]"
    console.print(f"{len(report.results)} points: {verdict}")
