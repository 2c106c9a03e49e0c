"""The processes that share out what is to be proven on a GPU, with jobs that need none."""

import importlib
import os
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "deepinfer-cuda" / "scripts"


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    yield importlib.import_module("ci_pool")
    sys.modules.pop("ci_pool", None)


def answer(value):
    print("heard", value)
    return {"passed": True, "value": value, "process": os.getpid()}


def refuse(words):
    print("before it failed")
    raise ValueError(words)


def die(code):
    os.write(2, b"LLVM ERROR: cannot select")
    os._exit(code)


def sleep(seconds):
    time.sleep(seconds)
    return {"passed": True}


class LostContext:
    """What torch is to a process whose GPU answers no more."""

    def __init__(self):
        self.cuda = self

    def is_initialized(self):
        return True

    def synchronize(self):
        raise RuntimeError("an illegal memory access was encountered")


def lose_context():
    sys.modules["torch"] = LostContext()
    return {"passed": True}


def run(pool, *jobs, limits=None, workers=1):
    jobs = [
        pool.Job(part, str(place), f"test_ci_pool:{function.__name__}", arguments)
        for place, (part, function, *arguments) in enumerate(jobs)
    ]
    limits = {job.part: 60 for job in jobs} | (limits or {})
    return {int(job.name): found for job, found in pool.run_jobs(jobs, limits, workers)}


def test_processes_stay_and_share_out_jobs(pool):
    found = run(pool, *(("a", answer, value) for value in range(6)), workers=2)
    assert [found[place]["value"] for place in range(6)] == list(range(6))
    assert 1 <= len({each["process"] for each in found.values()} - {os.getpid()}) <= 2


def test_a_job_that_fails_tells_why_and_what_it_printed(pool):
    found = run(pool, ("a", refuse, "no such tile"), ("a", answer, 1))
    assert not found[0]["passed"]
    assert "ValueError: no such tile" in found[0]["error"]
    assert "before it failed" in found[0]["output"]
    assert found[1]["passed"] and "output" not in found[1]


def test_a_process_that_ends_is_a_finding_and_is_replaced(pool):
    found = run(pool, ("a", die, 6), ("a", answer, 1))
    assert "code 6" in found[0]["error"]
    assert "LLVM ERROR" in found[0]["output"]
    assert found[1]["passed"]


def test_a_context_that_is_lost_takes_no_other_job_with_it(pool):
    found = run(pool, ("a", lose_context), ("a", answer, 1))
    assert not found[0]["passed"]
    assert "illegal memory access" in found[0]["error"]
    assert found[1]["passed"]


def test_a_part_ends_in_time_and_the_others_go_on(pool):
    begun = time.monotonic()
    jobs = (("slow", sleep, 50), ("slow", sleep, 50), ("a", answer, 1))
    found = run(pool, *jobs, limits={"slow": 1.5})
    assert time.monotonic() - begun < 30
    assert found[0]["error"] == "ended: its part has 1.5 s"
    assert found[1]["error"] == "not begun: its part has 1.5 s"
    assert found[2]["passed"]
