"""`deepinfer bench`: latency and throughput, beside what the machine would allow, and the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core.cli.bench_ops_cmd import ops, protocol
from deepinfer_core.cli.bench_parts import (
    ModelArgument,
    number,
    numbers,
    row,
    table,
    with_model,
)
from deepinfer_core.cli.options import Command, JsonOption, with_options
from deepinfer_core.cli.render import print_json, stderr
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.plugin_api import load_target

# Measuring needs torch, which takes seconds to import; other commands should not wait.
RUN = "deepinfer_core.bench.run:run_bench"
OPTIONS = "deepinfer_core.bench.run:BenchOptions"
WRITE = "deepinfer_core.bench.report:write_report"

PromptLens = Annotated[str, typer.Option(help="Lengths of the prompts served one at a time.")]
Concurrency = Annotated[str, typer.Option(help="Numbers of requests served at once.")]
PromptLen = Annotated[int, typer.Option(help="Tokens of each prompt of throughput.", min=1)]
OutputLen = Annotated[int, typer.Option(help="Tokens drawn for each prompt.", min=3)]
Repeats = Annotated[int, typer.Option(help="Runs of each kind; a busy machine needs more.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the prompts, which are random ids.")]
Output = Annotated[
    Path | None,
    typer.Option(help="Directory for bench.json and bench.png.", show_default=False),
]

_LENS, _COUNTS = "128,512,2048", "1,4,16,64"


def register(app: typer.Typer) -> None:
    """Add `deepinfer bench latency|throughput|all|ops|protocol`."""
    bench = typer.Typer(help="Measure speed.", no_args_is_help=True)
    commands: dict[str, Command] = {
        "latency": latency,
        "throughput": throughput,
        "all": both,
        "ops": ops,
        "protocol": protocol,
    }
    for name, command in commands.items():
        bench.command(name)(with_options(command, model_required=False))
    app.add_typer(bench, name="bench")


def latency(
    engine: ResolvedConfig,
    path: ModelArgument = None,
    prompt_lens: PromptLens = _LENS,
    output_len: OutputLen = 32,
    repeats: Repeats = 3,
    seed: Seed = 0,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Time to the first token by length of prompt, and time per token after it, one at a time.

    Examples:

      deepinfer bench latency model.gguf

      deepinfer bench latency ./Qwen3-0.6B --prompt-lens 128,1024 --dtype bfloat16 --json
    """
    fields = {
        "prompt_lens": numbers(prompt_lens, "--prompt-lens"),
        "concurrency": (),
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    _run(engine, path, fields, output, as_json=as_json)


def throughput(
    engine: ResolvedConfig,
    path: ModelArgument = None,
    concurrency: Concurrency = _COUNTS,
    prompt_len: PromptLen = 128,
    output_len: OutputLen = 32,
    repeats: Repeats = 3,
    seed: Seed = 0,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Tokens per second with many requests at once, and where the time of a step goes.

    Examples:

      deepinfer bench throughput model.gguf --num-threads 2

      deepinfer bench throughput ./Qwen3-0.6B --concurrency 1,32 --output build/bench
    """
    fields = {
        "prompt_lens": (),
        "concurrency": numbers(concurrency, "--concurrency"),
        "prompt_len": prompt_len,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    _run(engine, path, fields, output, as_json=as_json)


def both(
    engine: ResolvedConfig,
    path: ModelArgument = None,
    prompt_lens: PromptLens = _LENS,
    concurrency: Concurrency = _COUNTS,
    prompt_len: PromptLen = 128,
    output_len: OutputLen = 32,
    repeats: Repeats = 3,
    seed: Seed = 0,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Latency and throughput in one report.

    Examples:

      deepinfer bench all model.gguf --output build/bench

      deepinfer bench all --model ./Qwen3-0.6B --batch-invariant --repeats 5 --json
    """
    fields = {
        "prompt_lens": numbers(prompt_lens, "--prompt-lens"),
        "concurrency": numbers(concurrency, "--concurrency"),
        "prompt_len": prompt_len,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    _run(engine, path, fields, output, as_json=as_json)


def _run(
    engine: ResolvedConfig,
    path: str | None,
    fields: dict[str, Any],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    config = with_model(engine, path)
    options = load_target(OPTIONS)(**fields)
    with stderr().status("starting") as status:
        report = load_target(RUN)(config, options, tell=status.update)
    written = load_target(WRITE)(report, output) if output is not None else []
    if as_json:
        print_json(report)
    else:
        _print(report)
    for path_written in written:
        stderr().print(f"wrote {path_written}", markup=False, soft_wrap=True)
    if output is not None and len(written) < 2:
        stderr().print("no plot: pip install 'deepinfer-core[plot]'", markup=False)


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    machine, model, bandwidth = report["machine"], report["model"], report["bandwidth"]
    console.print(
        f"{model['name']} in {model['dtype']} on {machine['device']}: {machine['cpu']}, "
        f"threads: {machine['num_threads']}, torch {machine['torch']}",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"read bandwidth: {_gb(bandwidth['large_bytes_per_s'])} GB/s from a large buffer, "
        f"{_gb(bandwidth['weights_bytes_per_s'])} GB/s from one of the size of the weights "
        f"({_mb(bandwidth['weights_bytes'])} MB)\n",
        soft_wrap=True,
    )
    if report["latency"]:
        console.print(_latency_table(report["latency"]))
    if report["throughput"]:
        console.print(_throughput_table(report["throughput"]))
    decodes = {f"{r['num_requests']}": r["decode"] for r in report["throughput"]}
    decodes |= {f"1 @ {r['prompt_len']}": r["decode"] for r in report["latency"]}
    console.print(_decode_table(decodes))
    for note in report["notes"]:
        console.print(note, markup=False)


def _latency_table(results: list[dict[str, Any]]) -> Table:
    shown = table(
        "One request alone: ms to the first token, ms per token after it",
        "prompt", "first", "best", "prompt tok/s", "per token", "best", "tok/s",
    )  # fmt: skip
    for r in results:
        decode = r["decode"]
        row(
            shown, r["prompt_len"], r["ttft_ms"], r["best_ttft_ms"], r["prompt_tokens_per_s"],
            decode["step_ms"], decode["best_step_ms"], decode["tokens_per_s"],
        )  # fmt: skip
    return shown


def _throughput_table(results: list[dict[str, Any]]) -> Table:
    first = results[0]
    shown = table(
        f"Many requests at once, {first['prompt_len']} tokens in and {first['output_len']} out: "
        "tokens per second",
        "requests", "seconds", "all", "output", "in decode", "GEMMs alone", "preempted",
    )  # fmt: skip
    for r in results:
        decode = r["decode"]
        row(
            shown, r["num_requests"], r["elapsed_s"], r["total_tokens_per_s"],
            r["output_tokens_per_s"], decode["tokens_per_s"], decode["gemm_tokens_per_s"],
            r["num_preemptions"],
        )  # fmt: skip
    return shown


def _decode_table(decodes: dict[str, dict[str, Any]]) -> Table:
    shown = table(
        "A decode step: ms of its parts, MB that it reads, share of the read bandwidth",
        "requests", "step", "forward", "GEMMs", "sampler", "engine", "weights", "KV", "GB/s",
        "share",
    )  # fmt: skip
    for label, d in decodes.items():
        row(
            shown, label, d["step_ms"], d["parts_ms"]["forward"], d["gemm_ms"],
            d["parts_ms"]["sampler"], d["engine_ms"], _mb(d["weight_bytes"]), _mb(d["kv_bytes"]),
            _gb(d["bytes_per_s"]), f"{d['bandwidth_fraction']:.0%}",
        )  # fmt: skip
    return shown


def _mb(num_bytes: int) -> str:
    return number(num_bytes / 1e6)


def _gb(num_bytes: float) -> str:
    return number(num_bytes / 1e9)
