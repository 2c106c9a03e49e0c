"""The CPU plugin keeps what it claims, at every level of instructions that this CPU has."""

import pytest
from deepinfer_core.testing.run import run_conformance

PLUGIN = "deepinfer_cpu.plugin"


def test_on_this_cpu(cpu_library):
    report = run_conformance(PLUGIN)
    assert [(r.op, r.dtype, r.name, r.message) for r in report.failures] == []
    assert {r.level for r in report.results} == {"L0", "L1", "L2", "L3"}


@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_at_lower_levels(level, at_level):
    at_level(level)
    report = run_conformance(PLUGIN, levels=("L1", "L2"))
    assert [(r.op, r.dtype, r.name, r.message) for r in report.failures] == []
    assert len(report.results) > 300
