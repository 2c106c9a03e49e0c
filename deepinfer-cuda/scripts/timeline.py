"""What the GPU does in decode steps, and where it idles: `python timeline.py CONFIG_DIR OUT_DIR`.

Traces some steps at each batch size, says what share of a step the GPU had nothing to do, and for
whom it waited: between kernels of one recorded graph for itself, elsewhere for the host if the
host's call to launch had not returned. Writes a PNG of two steps per batch size where matplotlib
is installed. Tracing slows kernels and launches a little, so the step without it stands beside.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from deepinfer_core.bench.steps import decoding
from deepinfer_core.engine import Engine
from dummy_engine import start_engine

BATCHES = (1, 8, 32, 128)
CONTEXT = 1024
NUM_STEPS = 12
GRAPH_KERNELS = 20
"""A launch of at least so many kernels is a recorded step."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel or copy; times in microseconds."""

    name: str
    start: float
    end: float
    launch: int
    """Shared by all kernels of a graph."""
    launched: float
    """When the host's call to launch it returned."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Of whole decode steps on the device; shares of their time."""

    num_steps: int
    step_ms: float
    idle: float
    in_graphs: float
    """Between kernels of one graph, for which no host is needed."""
    for_host: float
    """Until the host's call to launch the next work returned."""


def read_trace(events: Sequence[dict[str, Any]]) -> list[Work]:
    """The device's work in order of start, from the events of a Chrome trace."""
    returned = {
        event["args"]["correlation"]: event["ts"] + event["dur"]
        for event in events
        if event.get("cat") in ON_HOST and "correlation" in event.get("args", {})
    }
    found = []
    for event in events:
        if event.get("cat") in ON_DEVICE:
            launch = event["args"]["correlation"]
            start, end = event["ts"], event["ts"] + event["dur"]
            found.append(Work(event["name"], start, end, launch, returned.get(launch, start)))
    return sorted(found, key=lambda work: work.start)


def step_starts(work: Sequence[Work]) -> list[float]:
    """When the first kernel of each recorded step began."""
    recorded = _recorded(work)
    firsts: dict[int, float] = {}
    for each in work:
        if each.launch in recorded:
            firsts.setdefault(each.launch, each.start)
    return sorted(firsts.values())


def _recorded(work: Sequence[Work]) -> set[int]:
    sizes = Counter(each.launch for each in work)
    return {launch for launch, size in sizes.items() if size >= GRAPH_KERNELS}


def find_idle(work: Sequence[Work]) -> Idle:
    """Sum up the gaps from the first step that began to the last one that did.

    Raises:
        ValueError: fewer than two recorded steps: there is no whole one.
    """
    starts = step_starts(work)
    if len(starts) < 2:
        raise ValueError(f"wanted two recorded steps, found {len(starts)} in {len(work)} kernels")
    begin, end = starts[0], starts[-1]
    inside = [each for each in work if begin <= each.start <= end]
    busy_until, last_launch = begin, inside[0].launch
    idle = in_graphs = for_host = 0.0
    for each in inside:
        gap = each.start - busy_until
        if gap > 0:
            idle += gap
            if each.launch == last_launch:
                in_graphs += gap
            else:
                for_host += min(gap, max(0.0, each.launched - busy_until))
        if each.end > busy_until:
            busy_until, last_launch = each.end, each.launch
    length = end - begin
    return Idle(
        num_steps=len(starts) - 1,
        step_ms=length / (len(starts) - 1) / 1e3,
        idle=idle / length,
        in_graphs=in_graphs / length,
        for_host=for_host / length,
    )


def trace_steps(engine: Engine) -> tuple[list[dict[str, Any]], float]:
    """Events of some steps, and milliseconds of a step without tracing."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(NUM_STEPS):
        engine.advance()
    torch.cuda.synchronize()
    plain_ms = (time.perf_counter() - begun) / NUM_STEPS * 1e3
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(NUM_STEPS):
            engine.advance()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events, plain_ms


def draw(works: dict[int, list[Work]], path: Path) -> None:
    """Two steps per batch size: kernels of recorded steps above, single ones below."""
    try:
        import matplotlib  # optional: a plot
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    matplotlib.use("agg")
    from matplotlib.figure import Figure  # optional: a plot

    figure = Figure(figsize=(14, 2.2 * len(works)), layout="constrained")
    rows = figure.subplots(len(works), 1, squeeze=False)[:, 0]
    for axes, (batch, work) in zip(rows, works.items(), strict=True):
        _draw_steps(axes, work)
        idle = find_idle(work)
        axes.set_title(
            f"batch {batch}: idle {idle.idle:.1%} of a step of {idle.step_ms:.2f} ms, "
            f"within recorded steps {idle.in_graphs:.1%}, for the host {idle.for_host:.1%}"
        )
    axes.set_xlabel("ms")
    figure.savefig(path, dpi=120)


def _draw_steps(axes: Any, work: Sequence[Work]) -> None:
    starts = step_starts(work)[-4:-1]
    begin, end = starts[0], starts[-1]
    recorded = _recorded(work)
    for row, is_recorded in enumerate((False, True)):
        spans = [
            ((each.start - begin) / 1e3, (each.end - each.start) / 1e3)
            for each in work
            if begin <= each.start < end and (each.launch in recorded) == is_recorded
        ]
        axes.broken_barh(spans, (row + 0.1, 0.8), linewidth=0)
    axes.vlines([(start - begin) / 1e3 for start in starts], 0, 2, color="0.6")
    axes.set(
        yticks=[0.5, 1.5],
        yticklabels=["single launches", "recorded step"],
        xlim=(0, (end - begin) / 1e3),
    )


def main() -> None:
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    engine = start_engine(directory).engine
    works: dict[int, list[Work]] = {}
    results = []
    for batch in BATCHES:
        with decoding(engine, batch, context=CONTEXT, num_steps=2 * NUM_STEPS):
            events, plain_ms = trace_steps(engine)
        works[batch] = read_trace(events)
        results.append({"batch": batch, "untraced_ms": plain_ms, **asdict(find_idle(works[batch]))})
        print(json.dumps(results[-1]), flush=True)
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": results}
    (out / "timeline.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    draw(works, out / "timeline.png")


if __name__ == "__main__":
    main()
