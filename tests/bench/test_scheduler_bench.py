"""What one step costs the scheduler: by requests that run, and by requests that wait."""

from __future__ import annotations

import gc
import json
import platform
import statistics
from time import thread_time

import pytest
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import StepOutput, StepPlan
from deepinfer_core.scheduling.scheduler import Scheduler

PARAMS = SamplingParams(max_tokens=100_000)
LAYOUTS = {
    "full": [LayerKV("full", 8, 128, 2)] * 4,
    "full+window": [LayerKV("full", 8, 128, 2)] * 2 + [LayerKV("window", 8, 128, 2, 128)] * 2,
}


def measure(
    *, layout: str, num_running: int, num_waiting: int, overlap: bool, num_steps: int = 300
) -> dict[str, object]:
    """CPU microseconds (the code never waits) of schedule + commit per steady decode step."""
    kv = KVManager(make_layout(LAYOUTS[layout], block_size=16), num_running * 64 + 1)
    scheduler = Scheduler(kv, max_num_seqs=num_running, max_num_batched_tokens=8192)
    for index in range(num_running + num_waiting):
        prompt = [index % 1000] * 2 + list(range(64 + index % 16))
        request = Request(index, prompt, PARAMS, index, frozenset({-5}), 100_000)
        scheduler.add(request)
    in_flight: list[tuple[StepPlan, StepOutput]] = []
    times: list[float] = []
    gc.collect()
    gc.disable()
    for step in range(num_steps + 20):
        begin = thread_time()
        plan = scheduler.schedule()
        middle = thread_time()
        assert plan is not None
        in_flight.append((plan, StepOutput([[1] for _ in plan.sample_rows])))
        begin += thread_time() - middle
        if len(in_flight) > overlap:
            scheduler.commit(*in_flight.pop(0))
        if step >= 20:
            times.append((thread_time() - begin) * 1e6)
            assert len(plan.rows) == num_running
    gc.enable()
    return {
        "layout": layout,
        "num_running": num_running,
        "num_waiting": num_waiting,
        "overlap": overlap,
        "median_us": round(statistics.median(times), 1),
        "p90_us": round(sorted(times)[int(len(times) * 0.9)], 1),
        "max_us": round(max(times), 1),
    }


@pytest.mark.bench
def test_cost_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        measure(layout="full", num_running=num, num_waiting=10, overlap=True)
        for num in (1, 16, 64, 256)
    ]
    results += [
        measure(layout="full", num_running=256, num_waiting=num, overlap=True)
        for num in (10, 100, 1000, 10_000)
    ]
    results.append(measure(layout="full", num_running=256, num_waiting=10, overlap=False))
    results.append(measure(layout="full+window", num_running=256, num_waiting=10, overlap=True))
    report = {"machine": platform.processor() or platform.machine(), "scheduler": results}
    with capsys.disabled():
        print("\n" + json.dumps(report, indent=1))
