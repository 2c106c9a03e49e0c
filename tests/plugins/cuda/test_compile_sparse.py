"""Kernels of sparse attention and of long chunks compile for each generation of GPUs."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "compile_sparse.py"
ROWS = {"rows", "rows 656", "rows 584", "rows 528"}
SCORES = {"scores", "scores of a chunk", "scores 132", "scores 68"}
CODED = {"encode 132"} | (ROWS | SCORES) - {"rows", "scores", "scores of a chunk"}
MAX_STACK = 704
"""Bytes that a thread of attention to rows keeps outside its registers on 9.0: addresses, beside
128 registers of values."""

FEW = 16
"""Bytes outside of registers and loops, which versions of Triton differ in."""


@pytest.fixture(scope="module")
def compile_for(run_program):
    """compile_for(SM): what came of each kernel there; compiled once."""
    found = {}

    def compile_for(sm):
        if sm not in found:
            found[sm] = json.loads(run_program(PROGRAM, sm, TRITON_DEFAULT_FP_FUSION="1"))
        return found[sm]

    return compile_for


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_every_kernel_fits_and_spills_no_more_than_is_known(compile_for, sm):
    found = compile_for(sm)
    shared = {name: kernel["shared"] for name, kernel in found["kernels"].items()}
    assert {name for name, size in shared.items() if size > found["limit"]} == set(), shared
    assert any(name in shared for name in CODED) == (sm >= 89), "codes are known from 8.9 on"
    for name, kernel in found["kernels"].items():
        assert kernel["stack"] is not None, "this Triton brings no cuobjdump, which tells of spills"
        assert kernel["stack"] <= (MAX_STACK if sm == 90 and name in ROWS else FEW), name


def test_tiles_use_the_matrix_units_of_hopper(compile_for):
    for name in ROWS | SCORES:
        assert compile_for(90)["kernels"][name]["has_wgmma"], name
