"""Triton's interpreter runs the kernels for what has no fused operator: one case of each."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
BOTH = {"norm.layer", "hc.collapse", "engram.gate"}


def test_kernels_in_triton_agree_with_the_references(run_program):
    found = json.loads(run_program(Path(__file__).parent / "interpret.py", TRITON_INTERPRET="1"))
    assert {outcome for outcome, _ in found.values()} == {"passed"}, found
    both = {f"{op} {dtype}" for op in BOTH for dtype in ("float32", "float16")}
    assert set(found) == both | {"kv.compress float32"}
