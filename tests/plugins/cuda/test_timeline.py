"""What the script makes of a trace; the trace itself needs a GPU."""

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "deepinfer-cuda" / "scripts"


@pytest.fixture
def timeline(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    yield importlib.import_module("timeline")
    for name in ("timeline", "dummy_engine"):
        sys.modules.pop(name, None)


def kernel(launch, start, end):
    arguments = {"correlation": launch}
    return {"cat": "kernel", "name": "k", "ts": start, "dur": end - start, "args": arguments}


def call(launch, start, end):
    return kernel(launch, start, end) | {"cat": "cuda_runtime", "name": "cudaGraphLaunch"}


def recorded_step(launch, start):
    """20 kernels of 4 microseconds, each a microsecond after the one before."""
    return [kernel(launch, start + 5 * i, start + 5 * i + 4) for i in range(20)]


def test_gaps_are_told_apart_by_whom_the_device_waited_for(timeline):
    events = [
        call(1, -20, -10),
        *recorded_step(1, 0),  # until 99
        call(2, 50, 60),
        kernel(2, 100, 120),  # launched in time: its gap of 1 is the device's own
        call(3, 125, 127),
        *recorded_step(3, 130),  # a gap of 10, of which 7 are for the host
    ]
    idle = timeline.find_idle(timeline.read_trace(events))
    assert idle.num_steps == 1
    assert idle.step_ms == pytest.approx(0.130)
    assert idle.in_graphs == pytest.approx(19 / 130)
    assert idle.for_host == pytest.approx(7 / 130)
    assert idle.idle == pytest.approx((19 + 1 + 10) / 130)


def test_kernels_that_overlap_leave_no_gap(timeline):
    events = [kernel(1, 3 * i, 3 * i + 4) for i in range(20)]
    events += [kernel(2, 60 + 3 * i, 60 + 3 * i + 4) for i in range(20)]
    assert timeline.find_idle(timeline.read_trace(events)).idle == 0


def test_a_trace_without_two_recorded_steps_is_refused(timeline):
    with pytest.raises(ValueError, match="found 1 in 20 kernels"):
        timeline.find_idle(timeline.read_trace(recorded_step(1, 0)))
