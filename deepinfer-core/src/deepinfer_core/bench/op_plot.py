"""Steps as stacked bars, one colour per op: measured beside what the device allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NUM_NAMED = 12
"""Ops with a colour of their own; the rest are one."""
_DPI = 120


def draw_ops(report: Mapping[str, Any], path: Path) -> bool:
    """Draw where each step's time goes, as a PNG.

    Args:
        report: as `measure_ops` gives it.

    Returns:
        False, and nothing is written, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # optional: extra `plot`
    except ImportError:
        return False

    steps = report["steps"]
    figure = Figure(figsize=(4.5 + 2.5 * len(steps), 6), layout="constrained")
    panels = figure.subplots(1, len(steps), squeeze=False)[0]
    names = _largest(steps)
    for axes, step in zip(panels, steps, strict=True):
        _draw_step(axes, step, names)
    panels[0].set_ylabel("ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    model, machine = report["model"], report["machine"]
    figure.suptitle(
        f"{model['name']}, {model['dtype']}, {machine['device']}, torch {machine['torch']}",
        fontsize=10,
    )
    figure.savefig(path, dpi=_DPI)
    return True


def _largest(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ops by their largest share of any step."""
    share: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, ms in _sums(step, "ms").items():
            share[name] = max(share[name], ms / step["step_ms"])
    return sorted(share, key=lambda name: -share[name])[:NUM_NAMED]


def _sums(step: Mapping[str, Any], field: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for op in step["ops"]:
        sums[f"{op['op']} {op['role']}"] += op[field]
    return sums


def _draw_step(axes: Any, step: Mapping[str, Any], names: Sequence[str]) -> None:
    measured, floors = _sums(step, "ms"), _sums(step, "floor_ms")
    bottom = [0.0, 0.0]
    for index, name in enumerate([*names, "other ops"]):
        if name == "other ops":
            rest = [
                sum(ms for key, ms in s.items() if key not in names) for s in (measured, floors)
            ]
        else:
            rest = [measured.get(name, 0.0), floors.get(name, 0.0)]
        axes.bar(("ops", "roofline"), rest, bottom=bottom, label=name, color=_color(index))
        bottom = [low + height for low, height in zip(bottom, rest, strict=True)]
    axes.axhline(step["step_ms"], color="black", linestyle="--", label="whole step")
    axes.set_title(f"{step['label']}\n{step['step_ms']:.3g} ms", fontsize=9)


def _color(index: int) -> str:
    """Ten colours, then greys."""
    return f"C{index}" if index < 10 else str(0.25 + 0.15 * (index - 10))
