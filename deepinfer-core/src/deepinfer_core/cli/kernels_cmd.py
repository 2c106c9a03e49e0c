"""`deepinfer kernels explain`: which kernel serves which layer of a model, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.plugins_cmd import BlockOption, PluginOption
from deepinfer_core.config import nest_fields
from deepinfer_core.errors import ConfigError
from deepinfer_core.ops.registry import problem_facts
from deepinfer_core.plugin_api import load_target

if TYPE_CHECKING:
    from deepinfer_core.cli.kernels_explain import Explanation

# Reading a model needs torch, which takes seconds to import; other commands should not wait.
EXPLAIN = "deepinfer_core.cli.kernels_explain:explain_model"


def register(app: typer.Typer) -> None:
    """Add `deepinfer kernels explain`."""
    kernels = typer.Typer(help="Look at the kernels that plugins offer.", no_args_is_help=True)
    # A callback keeps `explain` a subcommand, although it is the only one.
    kernels.callback()(lambda: None)
    kernels.command("explain")(explain)
    app.add_typer(kernels, name="kernels")


def explain(
    model: Annotated[str, typer.Argument(help="Directory, GGUF file or hub id.")],
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="Kind of device; auto takes the best.")] = "auto",
    kernels: Annotated[
        list[str] | None,
        typer.Option(help="OP=PROVIDER[,PROVIDER...], OP may be family.*; repeatable."),
    ] = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Only kernels that claim it.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only kernels that claim it.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="No references for hot ops on accelerators.")
    ] = False,
    plugin: PluginOption = None,
    block: BlockOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show op by op which kernel serves a model, and why not the others.

    No weights are read. Exits with an error if an op cannot be served.

    Examples:

      deepinfer kernels explain model.gguf

      deepinfer kernels explain ./Qwen3-0.6B --dtype bfloat16 --batch-invariant --json

      deepinfer kernels explain model.gguf -p example --kernels norm.rms=example.rms
    """
    fields = {
        "model": model,
        "dtype": dtype,
        "kind": device,
        "kernels": parse_overrides(kernels or []),
        "batch_invariant": batch_invariant,
        "deterministic": deterministic,
        "strict": strict,
        **({"plugins": plugin} if plugin else {}),
        **({"block": block} if block else {}),
    }
    answer: Explanation = load_target(EXPLAIN)(nest_fields(fields))
    if as_json:
        typer.echo(json.dumps(as_plain(answer), indent=2))
        return
    table = Table(title=f"{answer.architecture} in {answer.dtype} on {answer.device}")
    for column in ("op", "role", "problem", "provider", "why", "why not the others"):
        table.add_column(column, overflow="fold")
    for choice in answer.choices:
        rejected = "\n".join(f"{provider}: {reason}" for provider, reason in choice.rejected)
        table.add_row(
            choice.op,
            choice.problem.role,
            problem_facts(choice.problem),
            choice.provider,
            choice.why,
            rejected,
        )
    Console().print(table)


def parse_overrides(texts: list[str]) -> dict[str, tuple[str, ...]]:
    """Turn `OP=PROVIDER[,PROVIDER...]` into what `EngineConfig` takes.

    Raises:
        ConfigError: not of that form, or an op is given twice.
    """
    overrides: dict[str, tuple[str, ...]] = {}
    for text in texts:
        op, separator, providers = text.partition("=")
        names = tuple(name.strip() for name in providers.split(",") if name.strip())
        if not (separator and op.strip() and names) or op.strip() in overrides:
            raise ConfigError(
                "not a choice of kernels, or the second one for this op",
                field="device.kernels",
                value=text,
                allowed="OP=PROVIDER[,PROVIDER...], such as norm.rms=example.rms",
                source="--kernels",
            )
        overrides[op.strip()] = names
    return overrides


def as_plain(answer: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values."""
    return {
        "architecture": answer.architecture,
        "dtype": answer.dtype,
        "device": answer.device,
        "ops": [
            {
                "op": choice.op,
                "role": choice.problem.role,
                "dtype": choice.problem.dtype,
                "kv_dtype": choice.problem.kv_dtype,
                "scheme": choice.problem.scheme,
                "shape": dict(choice.problem.shape),
                "features": sorted(choice.problem.features),
                "provider": choice.provider,
                "why": choice.why,
                "numerics": choice.kernel.numerics,
                "workspace_bytes": choice.workspace_bytes,
                "rejected": [
                    {"provider": provider, "reason": reason} for provider, reason in choice.rejected
                ],
            }
            for choice in answer.choices
        ],
    }
