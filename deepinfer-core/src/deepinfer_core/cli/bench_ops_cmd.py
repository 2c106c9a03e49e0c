"""`deepinfer bench ops` and `protocol`: a model beside the roofline of its device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.bench_parts import (
    ModelArgument,
    number,
    numbers,
    row,
    table,
    with_model,
)
from deepinfer_core.cli.options import JsonOption
from deepinfer_core.cli.render import print_json, stderr
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.plugin_api import load_target

# Measuring needs torch, which takes seconds to import; other commands should not wait.
CONFIGURE = "deepinfer_core.bench.open_engine:protocol_config"
MEASURE_OPS = "deepinfer_core.bench.op_steps:measure_ops"
OPS_OPTIONS = "deepinfer_core.bench.op_steps:OpsOptions"
DRAW_OPS = "deepinfer_core.bench.op_plot:draw_ops"
RUN_PROTOCOL = "deepinfer_core.bench.protocol:run_protocol"
MEASURE_INVARIANCE = "deepinfer_core.bench.invariance:measure_invariance"
PARSE_TESTS = "deepinfer_core.bench.protocol:parse_tests"
WRITE_JSON = "deepinfer_core.bench.report:write_json"

TABLE_WIDTH = 110
"""Also where output goes to a file: names of ops are not to be cut."""

Batches = Annotated[str, typer.Option(help="Decode steps to look at, by number of requests.")]
Context = Annotated[int, typer.Option(help="Tokens of each of their prompts.", min=1)]
Prompts = Annotated[
    str, typer.Option(help="Also prompts of so many tokens, one at a time.", show_default=False)
]
Rows = Annotated[int, typer.Option(help="Ops shown of each step; 0: all.", min=0)]
Tests = Annotated[
    str, typer.Option(help="smoke, short, std, or lat:B:IN:OUT,ttft:B:IN,thr:N:IN:OUT.")
]
Repeats = Annotated[int, typer.Option(help="Runs of each decode and first-token test.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the prompts, which are random ids.")]
InvarianceCost = Annotated[
    bool,
    typer.Option("--invariance-cost", help="Run with and without --batch-invariant, and compare."),
]
Output = Annotated[
    Path | None, typer.Option(help="Directory for the report's files.", show_default=False)
]


def ops(
    engine: ResolvedConfig,
    path: ModelArgument = None,
    batches: Batches = "1,32",
    context: Context = 1024,
    prompts: Prompts = "",
    rows: Rows = 15,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """What each op of a step takes, moves and multiplies, beside the roofline; the slowest first.

    Each kind of op runs again alone, with the tensors that a step gave it. The ceilings are
    measured on the device: a large copy, a large product. Without other settings: no prefix
    cache, 256 requests, 16,384 tokens a step.

    Examples:

      deepinfer bench ops ./Qwen3-8B --load-format dummy --dtype bfloat16

      deepinfer bench ops model.gguf --batches 1,8 --prompts 512 --output build/bench
    """
    config = with_model(engine, path, load_target(CONFIGURE))
    options = load_target(OPS_OPTIONS)(
        batches=numbers(batches, "--batches"),
        context=context,
        prompts=numbers(prompts, "--prompts") if prompts else (),
    )
    with stderr().status("starting") as status:
        report = load_target(MEASURE_OPS)(config, options, tell=status.update)
    if as_json:
        print_json(report)
    else:
        _print_ops(report, rows)
    if output is not None:
        _say_written(load_target(WRITE_JSON)(report, output / "ops.json"))
        if load_target(DRAW_OPS)(report, output / "ops.png"):
            _say_written(output / "ops.png")


def protocol(
    engine: ResolvedConfig,
    path: ModelArgument = None,
    tests: Tests = "std",
    repeats: Repeats = 3,
    seed: Seed = 0,
    invariance_cost: InvarianceCost = False,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Decode steps, first tokens and throughput by a protocol that other engines can run, too.

    Prints a line RESULT with JSON for each test, and a line COST where two are compared. Without
    other settings: no prefix cache, 256 requests, 16,384 tokens a step.

    Examples:

      deepinfer bench protocol ./Qwen3-8B --load-format dummy --dtype bfloat16

      deepinfer bench protocol model.gguf --tests lat:4:128:32,ttft:1:512 --output build/bench

      deepinfer bench protocol model.gguf --tests smoke --invariance-cost
    """
    wanted = load_target(PARSE_TESTS)(tests)
    config = with_model(engine, path, load_target(CONFIGURE))

    def emit(result: dict[str, Any]) -> None:
        if not as_json:
            print("RESULT", json.dumps(_rounded(result)), flush=True)

    run = load_target(MEASURE_INVARIANCE if invariance_cost else RUN_PROTOCOL)
    with stderr().status("starting") as status:
        report = run(config, wanted, repeats=repeats, seed=seed, tell=status.update, emit=emit)
    if as_json:
        print_json(report)
    else:
        for cost in report.get("costs", ()):
            print("COST", json.dumps(_rounded(cost)), flush=True)
    if output is not None:
        _say_written(load_target(WRITE_JSON)(report, output / "protocol.json"))


def _print_ops(report: Mapping[str, Any], num_rows: int) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    model, ceilings = report["model"], report["ceilings"]
    speeds = [f"{name} {flop / 1e12:.3g}" for name, flop in ceilings["flop_per_s"].items()]
    console.print(
        f"{model['name']} in {model['dtype']} on {report['machine']['device']}: a copy moves "
        f"{ceilings['bytes_per_s'] / 1e9:,.0f} GB/s, products make {', '.join(speeds)} TFLOP/s\n",
        markup=False,
        soft_wrap=True,
    )
    for step in report["steps"]:
        console.print(_ops_table(step, num_rows))


def _ops_table(step: Mapping[str, Any], num_rows: int) -> Table:
    shown = table(
        f"{step['label']}: {number(step['step_ms'])} ms, {step['of_roofline']:.0%} of the roofline "
        f"({number(step['floor_ms'])} ms); its ops alone {number(step['ops_ms'])} ms",
        "op", "as", "kernel", "calls", "ms", "share", "MB", "GFLOP", "roofline", "by",
    )  # fmt: skip
    for op in step["ops"][: num_rows or None]:
        row(
            shown, op["op"], op["role"], op["provider"], op["calls"], op["ms"],
            f"{op['ms'] / step['ops_ms']:.0%}", op["num_bytes"] / 1e6, op["flop"] / 1e9,
            f"{op['of_roofline']:.0%}", op["is_bound_by"],
        )  # fmt: skip
    hidden = step["ops"][num_rows:] if num_rows else []
    if hidden:
        row(shown, f"{len(hidden)} more", "", "", sum(op["calls"] for op in hidden),
            sum(op["ms"] for op in hidden))  # fmt: skip
    return shown


def _rounded(result: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}


def _say_written(path: Path) -> None:
    stderr().print(f"wrote {path}", markup=False, soft_wrap=True)
