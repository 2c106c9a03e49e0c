"""The kernel for products of few rows: how it is launched, and that it compiles without a GPU."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from deepinfer_cuda.heuristics_skinny import MAX_HELD, MAX_SCALES, ROWS, skinny_launch

triton = pytest.importorskip("triton")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
HOPPER, RTX = 232_448, 101_376
COMPILE = """
import json, sys
from pathlib import Path
from deepinfer_cuda.compiled import compile_source
names = ("PIECE", "STAGES", "FILLERS", "HELD", "GATED", "CODED", "EXPERTS", "IS_HALF")
for index, values in enumerate(json.loads(sys.argv[3])):
    constants = tuple(zip(names, values, strict=True))
    binary = compile_source("skinny", constants, sys.argv[1])
    Path(sys.argv[2], f"{index}.cubin").write_bytes(binary)
"""
VARIANTS = [
    *((256, 4, 2, 1, 0, 0, 0, 0), (1024, 4, 2, MAX_HELD, 1, 0, 0, 0), (1024, 4, 2, 0, 0, 0, 2, 1)),
    *((512, 4, 4, 3, 0, 1, 0, 0), (1024, 4, 4, MAX_HELD, 1, 1, 1, 0), (2048, 4, 4, 0, 0, 1, 0, 1)),
    (2048, 4, 4, 1, 0, 1, 2, 0),
]


def test_what_was_measured_on_an_h200_stays():
    launch = skinny_launch(1, 4096, 132, HOPPER)
    assert (launch.piece, launch.num_stages, launch.num_fillers) == (1024, 6, 2)
    assert (launch.pieces_held, launch.num_blocks) == (4, 132)


@pytest.mark.parametrize("shared_bytes", [HOPPER, RTX])
@pytest.mark.parametrize("is_coded", [False, True])
@pytest.mark.parametrize("size", [512, 1536, 4096, 7168, 16384])
def test_a_ring_fits_and_pieces_fill_the_row(size, is_coded, shared_bytes):
    launch = skinny_launch(5, size, 100, shared_bytes, is_coded=is_coded)
    assert size % launch.piece == 0 and launch.piece % 256 == 0
    assert launch.num_stages >= 2 and launch.shared_bytes <= shared_bytes
    is_held = size <= MAX_HELD * 1024
    assert launch.pieces_held == (size // launch.piece if is_held else 0)


@pytest.mark.parametrize(("rows", "size"), [(0, 4096), (ROWS + 1, 4096), (1, 4100)])
def test_other_products_are_not_for_it(rows, size):
    assert skinny_launch(rows, size, 132, HOPPER) is None


def test_codes_need_whole_groups_and_a_lane_for_each_scale():
    assert skinny_launch(1, 768, 132, HOPPER, is_coded=True) is None
    longest = MAX_SCALES * 1024
    assert skinny_launch(1, longest, 132, HOPPER, is_coded=True) is not None
    assert skinny_launch(1, longest + 1024, 132, HOPPER, is_coded=True) is None


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_it_compiles_and_hardly_spills(arch, run_program, tmp_path):
    run_program("-c", COMPILE, arch, tmp_path, json.dumps(VARIANTS))
    for index, variant in enumerate(VARIANTS):
        command = [TOOL, "-res-usage", tmp_path / f"{index}.cubin"]
        usage = subprocess.run(command, capture_output=True, text=True).stdout
        (stack,) = map(int, re.findall(r"STACK:(\d+)", usage))
        holds_most = variant[3] == MAX_HELD and variant[5]
        assert stack <= (16 if holds_most else 0), f"{variant}: bytes of spilled registers"


def test_what_does_not_compile_says_why(run_program):
    code = """
from deepinfer_cuda.compiled import compile_source
from deepinfer_core.errors import PlatformError
try:
    compile_source("skinny", (("PIECE", 1024),), "sm_90")
except PlatformError as error:
    print(error)
"""
    assert re.search(r"skinny does not compile for sm_90: .*STAGES", run_program("-c", code), re.S)
