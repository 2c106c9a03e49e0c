"""A benchmark's report as files: JSON, and a plot of it where the extra `plot` is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.bench.clock import ENGINE_PARTS, MODEL_PARTS
from deepinfer_core.errors import ConfigError

JSON_NAME = "bench.json"
PLOT_NAME = "bench.png"
_DPI = 120


def write_report(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the report into a directory, which is made if need be.

    Returns:
        What was written: the JSON, and the plot if matplotlib is there and has something to show.

    Raises:
        ConfigError: the directory cannot be written to.
    """
    path = write_json(report, directory / JSON_NAME)
    plot = directory / PLOT_NAME
    return [path, plot] if draw_plot(report, plot) else [path]


def write_json(report: Mapping[str, Any], path: Path) -> Path:
    """Write a report into a file, whose directory is made if need be.

    Raises:
        ConfigError: the directory cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written: {error}", field="--output") from error
    return path


def draw_plot(report: Mapping[str, Any], path: Path) -> bool:
    """Draw tokens per second beside their ceilings, and the parts of a step, as a PNG.

    Returns:
        False if matplotlib is not installed; then nothing is written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # optional: plot
        from matplotlib.figure import Figure  # optional: plot
    except ImportError:
        return False
    # Without pyplot, which keeps figures alive and looks for a display.
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    decodes = _decodes(report)
    left, right = figure.subplots(1, 2)
    _draw_speed(left, decodes)
    _draw_parts(right, decodes)
    model, machine = report["model"], report["machine"]
    figure.suptitle(
        f"{model['name']}, {model['dtype']}, {machine['cpu']}, threads: {machine['num_threads']}, "
        f"torch {machine['torch']}",
        fontsize=10,
    )
    figure.savefig(path, dpi=_DPI)
    return True


def _decodes(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Decode speeds by label: of throughput if it was measured, else of latency."""
    if report["throughput"]:
        return {f"{r['num_requests']}": r["decode"] for r in report["throughput"]}
    return {f"1 @ {r['prompt_len']}": r["decode"] for r in report["latency"]}


def _draw_speed(axes: Any, decodes: Mapping[str, Mapping[str, Any]]) -> None:
    labels = list(decodes)
    bandwidth_bound = [d["tokens_per_s"] / d["bandwidth_fraction"] for d in decodes.values()]
    axes.plot(labels, bandwidth_bound, "--", color="0.6", label="read bandwidth alone allows")
    axes.plot(
        labels,
        [d["gemm_tokens_per_s"] for d in decodes.values()],
        "--",
        color="tab:orange",
        label="GEMMs alone allow",
    )
    axes.plot(labels, [d["tokens_per_s"] for d in decodes.values()], "o-", label="measured")
    axes.set(xlabel="requests", ylabel="decode tokens/s", title="Decode speed")
    axes.set_yscale("log")
    axes.legend()


def _draw_parts(axes: Any, decodes: Mapping[str, Mapping[str, Any]]) -> None:
    labels = list(decodes)
    bottom = [0.0] * len(labels)
    shares = {
        "GEMMs alone": [min(d["gemm_ms"], d["parts_ms"]["forward"]) for d in decodes.values()],
        "rest of forward": [
            max(d["parts_ms"]["forward"] - d["gemm_ms"], 0.0) for d in decodes.values()
        ],
        "sampler": [d["parts_ms"][MODEL_PARTS[1]] for d in decodes.values()],
        "engine's own work": [
            sum(d["parts_ms"][part] for part in ENGINE_PARTS) for d in decodes.values()
        ],
    }
    for name, heights in shares.items():
        axes.bar(labels, heights, bottom=bottom, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(xlabel="requests", ylabel="ms per step", title="Where a decode step goes")
    axes.legend()
