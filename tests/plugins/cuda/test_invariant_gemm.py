"""Products whose bits do not depend on the batch, on the CPU: their tiles, and their instructions.

That the tiles agree in every bit only a GPU can prove: `deepinfer plugins check cuda` does.
"""

import json
from pathlib import Path

import pytest
from deepinfer_cuda.heuristics import NUM_PROCESSORS
from deepinfer_cuda.heuristics_invariant import InvariantLaunch, invariant_launch

pytest.importorskip("triton")
HOPPER, AMPERE, RTX = 232_448, 166_912, 101_376
SHARED_BYTES = {80: AMPERE, 90: HOPPER, 100: HOPPER, 120: RTX}
INSTRUCTIONS = {80: "mma.sync", 90: "wgmma", 100: "tcgen05.mma", 120: "mma.sync"}
ROWS = (1, 2, 63, 64, 65, 128, 300, 5000)
INTERPRET = """
import json, torch
from deepinfer_cuda.heuristics_invariant import InvariantLaunch
from deepinfer_cuda.kernels.invariant_gemm import dense, multiply
torch.manual_seed(0)
x, weight, bias = torch.randn(70, 100), torch.randn(40, 100), torch.randn(40)
wider = multiply(x[:, None], weight[None], bias, InvariantLaunch(128, 16, 32, "ieee", 4, 2))[:, 0]
y = dense(x, weight, bias)
alone = torch.cat([dense(x[place : place + 1], weight, bias) for place in (0, 37, 69)])
torch.testing.assert_close(y, x @ weight.T + bias)
torch.testing.assert_close(wider, y)
turned = torch.randn(2, 100, 40).transpose(1, 2)
groups = multiply(x.view(35, 2, 100), turned)
torch.testing.assert_close(groups, torch.einsum("tgk,gnk->tgn", x.view(35, 2, 100), turned))
print(json.dumps(bool((alone == y[[0, 37, 69]]).all())))
"""
COMPILE = """
import json, re, sys
sys.path.insert(0, sys.argv[1])
from compile_kernels import compile_kernel, describe
from deepinfer_cuda.kernels.invariant_gemm import BAND, product_kernel
sm, found = int(sys.argv[2]), []
for rows, outputs, block, precision, num_warps, num_stages in json.loads(sys.argv[3]):
    constants = {"ROWS": rows, "OUTPUTS": outputs, "BLOCK": block, "PRECISION": precision}
    constants |= {"BAND": BAND, "IS_EVEN": True, "HAS_BIAS": True, "weight_column_stride": 1}
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = compile_kernel(product_kernel, constants, options, sm)
    kinds = re.findall(r"(wgmma|mma\\.sync|tcgen05\\.mma)[.\\w:]*", compiled.asm["ptx"])
    found.append([*map(describe(compiled).get, ("shared", "stack")), sorted(set(kinds))])
print(json.dumps(found))
"""


def launches_for(shared_bytes):
    """Every launch that a size may get, in bfloat16."""
    return {
        invariant_launch(rows, outputs, 1, "bfloat16", shared_bytes)
        for rows in ROWS
        for outputs in (33, 4096, 24576)
    }


def as_tuple(launch):
    return tuple(getattr(launch, name) for name in InvariantLaunch.__slots__)


def test_a_row_takes_part_in_the_same_products_whatever_the_batch():
    """Wherever a program has fewer rows than a wgmma has, another instruction rounds otherwise."""
    for shared_bytes in (HOPPER, AMPERE, RTX):
        launches = launches_for(shared_bytes)
        assert len(launches) > 1
        assert {launch.block for launch in launches} == {64}
        assert min(launch.rows for launch in launches) == 64


def test_float32_has_one_launch_and_is_not_rounded_to_tf32():
    launches = {invariant_launch(rows, 4096, 1, "float32", HOPPER) for rows in ROWS}
    assert len(launches) == 1
    assert launches.pop().precision == "ieee"


def test_tiles_grow_while_there_is_one_for_each_processor():
    few, many = (invariant_launch(rows, 4096, 1, "bfloat16", HOPPER) for rows in (1, 8192))
    assert (few.rows, few.outputs) == (64, 32)
    assert many.rows * many.outputs == max(
        launch.rows * launch.outputs for launch in launches_for(HOPPER)
    )
    for rows in ROWS:
        launch = invariant_launch(rows, 24576, 1, "bfloat16", HOPPER)
        count = -(-rows // launch.rows) * -(-24576 // launch.outputs)
        assert count >= NUM_PROCESSORS
    assert invariant_launch(64, 512, 128, "bfloat16", HOPPER).outputs == 64


def test_a_row_has_the_same_bits_alone(run_program):
    assert json.loads(run_program("-c", INTERPRET, TRITON_INTERPRET="1")) is True


def test_attention_and_mixtures_have_the_same_bits_in_any_batch_and_chunk(run_program):
    """On a GPU `deepinfer plugins check cuda` tries many more."""
    program = Path(__file__).with_name("interpret_invariant.py")
    found = json.loads(run_program(program, TRITON_INTERPRET="1"))
    ops = ("attn.paged", "attn.mla", "attn.sparse_mla", "moe.experts")
    assert found == dict.fromkeys(ops, True)


@pytest.mark.parametrize("sm", sorted(INSTRUCTIONS))
def test_small_and_large_tiles_use_one_kind_of_instruction_and_fit(run_program, sm):
    tiles = sorted(launches_for(SHARED_BYTES[sm]), key=lambda tile: tile.rows * tile.outputs)
    launches = [as_tuple(tiles[0]), as_tuple(tiles[-1])]
    words = (COMPILE, Path(__file__).parent, sm, json.dumps(launches))
    found = json.loads(run_program("-c", *words, TRITON_DEFAULT_FP_FUSION="1"))
    assert len(found) == 2
    for shared, stack, kinds in found:
        assert shared <= SHARED_BYTES[sm]
        assert stack == 0
        assert kinds == [INSTRUCTIONS[sm]]
