"""Kernels of products with codes and of experts compile for each generation of GPUs, without one.

Three quarters of a minute on a quiet core.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "compile_products.py"
WITHOUT_E4M3 = {
    *("mxfp4 512", "integers", "few integers", "plain experts", "mxfp4 experts", "lay out", "sum"),
}
COPIED = {
    *("scaled 64", "scaled 8192", "rounded experts", "rounded experts' second"),
    *("plain experts", "coded experts"),
}
MATRIX = COPIED | {"coded 32", "coded 512", "mxfp4 512", "mxfp4 experts", "scaled by token"}
UNITS = dict.fromkeys(MATRIX, "HGMMA") | {"integers": "IGMMA", "few integers": "IGMMA"}
UNITS |= {name: "QGMMA" for name in MATRIX if name.startswith(("scaled", "rounded"))}
MAX_STACK = {
    (100, "scaled 64"): 536,
    **{(120, name): 8 for name in ("scaled 64", "scaled 8192", "plain experts", "coded experts")},
    (120, "coded 512"): 64,
    (120, "rounded experts"): 104,
    (120, "rounded experts' second"): 224,
}
"""Bytes that a thread keeps outside its registers, where it does."""


@pytest.fixture(scope="module")
def compile_for(run_program):
    """compile_for(SM): what came of each kernel there; compiled once."""
    found = {}

    def compile_for(sm):
        if sm not in found:
            found[sm] = json.loads(run_program(PROGRAM, sm, TRITON_DEFAULT_FP_FUSION="1"))
        return found[sm]

    return compile_for


def test_e4m3_is_refused_where_claims_say_so(compile_for):
    kernels = compile_for(80)["kernels"]
    refused = {name: kernel["refused"] for name, kernel in kernels.items() if "refused" in kernel}
    assert set(refused) == set(kernels) - WITHOUT_E4M3
    assert all("fp8e4nv not supported in this architecture" in why for why in refused.values())


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_kernels_fit_and_spill_no_more_than_is_known(compile_for, sm):
    found = compile_for(sm)
    kernels = {name: each for name, each in found["kernels"].items() if "refused" not in each}
    assert set(kernels) == (WITHOUT_E4M3 if sm == 80 else set(found["kernels"]))
    shared = {name: kernel["shared"] for name, kernel in kernels.items()}
    assert {name for name, size in shared.items() if size > found["limit"]} == set(), shared
    assert max(kernel["tensor_memory"] for kernel in kernels.values()) <= 512
    stacks = {name: kernel["stack"] for name, kernel in kernels.items()}
    assert None not in stacks.values(), "this Triton brings no cuobjdump, which tells of spills"
    spilled = {name for name, size in stacks.items() if size > MAX_STACK.get((sm, name), 0)}
    assert spilled == set(), stacks


def test_hopper_multiplies_with_its_own_units(compile_for):
    kernels = compile_for(90)["kernels"]
    for name, unit in UNITS.items():
        wanted = {unit, "UTMALDG"} if name in COPIED else {unit}
        assert kernels[name]["matrix"] == ["wgmma.mma_async"], name
        assert set(kernels[name]["instructions"]) in (wanted, set()), name
        assert kernels[name]["has_copies"] == (name in COPIED), name


def test_blackwell_multiplies_with_its_own_units(compile_for):
    kernels = compile_for(100)["kernels"]
    own = {name for name in kernels if kernels[name]["matrix"] == ["tcgen05.mma"]}
    # Triton multiplies integers with older units until 3.6.
    assert own - {"integers", "few integers"} == MATRIX
    assert {name for name in kernels if kernels[name]["has_copies"]} == COPIED
