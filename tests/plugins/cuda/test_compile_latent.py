"""Kernels of latent attention compile for each generation of GPUs; no GPU is needed."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "compile_latent.py"
MATRIX = ("latent decode", "latent chunk", "expanded")
MAX_STACK = {"latent decode": 512, "latent chunk": 512}
"""Bytes that a thread keeps outside its registers on 9.0: addresses of operands, which do not
change in the loop, beside 128 registers of values."""


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
    for name, kernel in found["kernels"].items():
        assert kernel["stack"] is not None, "this Triton brings no cuobjdump, which tells of spills"
        assert kernel["stack"] <= (MAX_STACK.get(name, 0) if sm == 90 else 0), name


def test_tiles_use_the_matrix_units_of_hopper(compile_for):
    for name in MATRIX:
        assert compile_for(90)["kernels"][name]["has_wgmma"], name
