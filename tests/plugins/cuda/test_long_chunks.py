"""Attention of long chunks equals the reference; Triton's kernels around it are interpreted."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "interpret_chunks.py"


def test_chunks_of_every_kind_equal_the_reference(run_program):
    found = json.loads(run_program(PROGRAM, TRITON_INTERPRET="1"))
    assert {name.split()[0] for name in found} == {"paged", "expanded"}
    wrong = {name: distance for name, distance in found.items() if not distance < 2e-3}
    assert wrong == {}
