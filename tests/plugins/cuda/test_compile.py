"""Every kernel compiles for each generation of GPUs, within its shared memory; no GPU is needed.

Launches are those of one typical model. A minute on one core, most of it imports, LLVM and the
assembler.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "compile_kernels.py"
ATTENTION = ("chunk", "decode", "merge", "shared lanes", "merge lanes")
SAMPLING = {"best", "pick", "mask", "penalties", "stages", "candidates", "logprobs"}
KERNELS = {*ATTENTION, "lanes", *SAMPLING, "norm", "act", "rope", "store", "qkv"}


@pytest.fixture(scope="module")
def compile_for(run_program):
    """compile_for(SM): what came of each kernel there; compiled once."""
    found = {}

    def compile_for(sm):
        if sm not in found:
            # Otherwise Triton 3.9 warns that its default will change.
            found[sm] = json.loads(run_program(PROGRAM, sm, TRITON_DEFAULT_FP_FUSION="1"))
        return found[sm]

    return compile_for


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_every_kernel_compiles_and_fits(compile_for, sm):
    found = compile_for(sm)
    assert set(found["kernels"]) == KERNELS
    shared = {name: kernel["shared"] for name, kernel in found["kernels"].items()}
    assert {name for name, size in shared.items() if size > found["limit"]} == set(), shared


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_attention_spills_no_registers(compile_for, sm):
    stacks = {name: compile_for(sm)["kernels"][name]["stack"] for name in ATTENTION}
    assert None not in stacks.values(), "this Triton brings no cuobjdump, which tells of spills"
    assert stacks == dict.fromkeys(ATTENTION, 0)


def test_chunks_use_the_matrix_units_of_hopper(compile_for):
    """A decode's tiles are of 16 rows, and those units want 64."""
    for name in ("chunk", "lanes", "shared lanes"):
        kernel = compile_for(90)["kernels"][name]
        assert kernel["has_wgmma"]
        assert kernel["has_hgmma"] in (True, None)
