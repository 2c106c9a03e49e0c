"""`deepinfer batch`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepinfer_core.cli import render
from deepinfer_core.cli.loading import open_llm
from deepinfer_core.cli.options import JsonOption, with_options
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.jobs.files import check_paths, journal_path
from deepinfer_core.observe.progress import Advance, progress_bar
from deepinfer_core.plugin_api import load_target
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.batch_job import BatchSummary

DEFAULT_MAX_TOKENS = 256
RUN_BATCH = "deepinfer_core.batch_job:run_batch"


def register(app: typer.Typer) -> None:
    """Add `deepinfer batch`."""
    app.command("batch")(with_options(batch))


def batch(
    engine: ResolvedConfig,
    sampling: dict[str, Any],
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="One request a line.")],
    output: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="One answer a line.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the job whose journal lies beside OUT.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete OUT and its journal first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve every row of a file. A bad row costs only itself, and nothing is done twice.

    A row is {"id", "prompt" or "messages", and any sampling parameter}, or a row of the OpenAI
    batch format (custom_id, method, url, body). Sampling options here serve rows that do not say
    otherwise. Results go to OUT.jsonl.journal as they exist, and to OUT.jsonl, in order, when all
    are there; after a kill or a full disk the same command with --resume goes on. The journal may
    be deleted when the job is done.

    Examples:

      deepinfer batch prompts.jsonl answers.jsonl --model ./Qwen3-0.6B --max-tokens 200

      deepinfer batch prompts.jsonl answers.jsonl --model ./Qwen3-0.6B --max-tokens 200 --resume

      echo '{"id": 1, "prompt": "2+2=", "temperature": 0}' > in.jsonl

      deepinfer batch in.jsonl out.jsonl -m model.gguf --overwrite --json
    """
    defaults = {"max_tokens": DEFAULT_MAX_TOKENS, **sampling}
    SamplingParams(**defaults)  # a wrong option is told now, not once for each row
    if overwrite and resume:
        raise ConfigError("--overwrite and --resume exclude each other")
    # Before the model is loaded, which may take minutes.
    check_paths(source, output, resume=resume, overwrite=overwrite)
    run_batch = load_target(RUN_BATCH)
    with open_llm(engine) as llm, ExitStack() as stack:
        if overwrite:
            _delete(output)
        report = None if as_json else _Bar(stack)
        summary = run_batch(llm, source, output, resume=resume, defaults=defaults, report=report)
    _print(summary, output, as_json=as_json)
    if summary.interrupted:
        raise typer.Exit(render.EXIT_INTERRUPTED)


class _Bar:
    """Shows a job's progress, from its first report on."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._advance: Advance | None = None
        self._num_shown = 0

    def __call__(self, summary: BatchSummary) -> None:
        if self._advance is None:
            self._advance = self._stack.enter_context(progress_bar("rows", summary.num_rows))
        per_s = summary.num_output_tokens / max(summary.elapsed_s, 1e-9)
        self._advance(summary.num_done - self._num_shown, f"{per_s:,.1f} output tokens/s")
        self._num_shown = summary.num_done


def _delete(output: Path) -> None:
    try:
        output.unlink(missing_ok=True)
        journal_path(output).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot be deleted: {error.strerror}", field="output", value=str(output)
        ) from error


def _print(summary: BatchSummary, output: Path, *, as_json: bool) -> None:
    speed = (summary.num_prompt_tokens, summary.num_output_tokens, summary.elapsed_s)
    if as_json:
        rows = {
            "num_rows": summary.num_rows,
            "num_done": summary.num_done,
            "num_resumed": summary.num_resumed,
            "num_errors": summary.num_errors,
            "interrupted": summary.interrupted,
        }
        render.print_json({"output": str(output), **rows, **render.speed_json(*speed)})
        return
    parts = [f"{summary.num_done:,} of {summary.num_rows:,} rows done"]
    if summary.num_resumed:
        parts.append(f"{summary.num_resumed:,} by an earlier run")
    if summary.num_errors:
        parts.append(f"{summary.num_errors:,} with an error, told in their lines")
    where = "run the same command with --resume to go on" if summary.interrupted else str(output)
    console = render.stderr()
    console.print(f"{', '.join(parts)}: {where}", markup=False, soft_wrap=True)
    console.print(render.speed_line(*speed), style="dim")
