"""As `compile_kernels.py`, of products with codes and of experts: the launches of DeepSeek-V3.

    python compile_products.py SM

A kernel that Triton refuses is in the output with what it said.
"""

import json
import re
import sys
import tempfile

import compile_kernels
from compile_kernels import SHARED_BYTES, compile_kernel, options, overlap
from deepinfer_cuda.heuristics_coded import coded_launch, invariant_launch, scaled_launch
from deepinfer_cuda.heuristics_moe import experts_launch, rounded_launch
from deepinfer_cuda.kernels import (
    coded_gemm,
    expert_product,
    expert_tiles,
    experts,
    quant,
    scaled_gemm,
)

HIDDEN, FFN, EXPERTS, TOP_K = 7168, 2048, 256, 8
FP8, BYTES, FLOATS = "*fp8e4nv", "*u8", "*fp32"
SCALES = {"scales_ptr": FLOATS, "x_scales_ptr": FLOATS, "q_scales_ptr": FLOATS}
SCALES |= {"w_scales_ptr": FLOATS, "weights_ptr": FLOATS, "bias_ptr": "*bf16"}
LISTS = dict.fromkeys(("ids_ptr", "map_ptr", "count_ptr", "experts_ptr"), "*i32")
compile_kernels.UNALIGNED += ("num_slots", "num_rows")


def coded(num_rows, scheme, choose):
    launch = choose(num_rows, HIDDEN, HIDDEN, "bfloat16", scheme) if choose is coded_launch else (
        choose(num_rows, "bfloat16", scheme)
    )  # fmt: skip
    constants = {
        "SIZE": HIDDEN,
        "SCHEME": scheme,
        "ROWS": launch.rows,
        "OUTPUTS": launch.outputs,
        "GROUPS": launch.groups,
        "BLOCK": launch.block,
        "BAND": coded_gemm.BAND,
        "HAS_BIAS": True,
        "PREFETCHED": launch.prefetched,
        "PRECISION": "tf32",
        "IS_PACKED": launch.is_packed,
    }
    packed = scheme == "mxfp4"
    types = {"w_ptr": BYTES if packed else FP8, "scales_ptr": BYTES if packed else FLOATS}
    return coded_gemm.coded_kernel, constants, launch, types


def scaled(num_rows, sm, group=128, number="fp8e4nv"):
    launch = scaled_launch(num_rows, HIDDEN, HIDDEN, group, SHARED_BYTES[sm])
    is_described = launch.is_described and sm >= 90
    constants = {
        "SIZE": HIDDEN,
        "GROUP": group or 0,
        "STEP": group or scaled_gemm.TOKEN_STEP,
        "ROWS": launch.rows,
        "OUTPUTS": launch.outputs,
        "HALVES": launch.halves,
        "SPLITS": launch.splits,
        "SWAP": launch.swap,
        "IS_DESCRIBED": is_described,
        "IS_INTEGER": number == "i8",
        "HAS_BIAS": False,
        "BAND": coded_gemm.BAND,
    }
    types = {"y_ptr": FLOATS if launch.splits > 1 else "*bf16"}
    for name, rows in (("q", launch.rows), ("w", launch.outputs)):
        tile = f"tensordesc<{number}[{rows}, 128]>"
        types[name] = tile if is_described else f"*{number}"
    return scaled_gemm.scaled_kernel, constants, launch, types


def product(num_slots, scheme, choose, sm, *, is_gated):
    launches = choose(num_slots, EXPERTS, FFN, "bfloat16", scheme)
    launch, halves = (launches.up, 2) if is_gated else (launches.down, 1)
    is_described = launch.is_described and sm >= 90
    constants = {
        "DEPTH": HIDDEN if is_gated else FFN,
        "TOP_K": TOP_K if is_gated else 1,
        "SCHEME": scheme,
        "IS_DESCRIBED": is_described,
        "IS_ROUNDED": launches.rounds,
        "IS_GATED": is_gated,
        "HAS_LIMIT": False,
        "SWAP": launch.swap,
        "ROWS": launch.rows,
        "COLUMNS": launch.columns,
        "WIDTH": halves * launch.columns,
        "BLOCK": launch.depth,
        "PRECISION": "tf32",
        "IS_PACKED": True,
    }
    number, pointer = {"plain": ("bf16", "*bf16"), "mxfp4": ("u8", BYTES)}.get(
        scheme, ("fp8e4nv", FP8)
    )
    block = f"[1, {halves}, {launch.columns}, {launch.depth}]"
    types = {"x_ptr": FP8 if launches.rounds else "*bf16"}
    types["w"] = f"tensordesc<{number}{block}>" if is_described else pointer
    if scheme == "mxfp4":
        types["w_scales_ptr"] = BYTES
    return expert_product.product_kernel, constants, launch, types


def launches(sm):
    """name: the kernel, its constants, its launch, types of arguments."""
    moe = rounded_launch
    return {
        "groups": (
            quant.groups_kernel,
            {"QMAX": 448.0, "IS_POWER": False, "ROWS": 8, "GROUP": 128, "GROUPS": 4},
            None,
            {"q_ptr": FP8},
        ),
        "coded 32": coded(32, "fp8_block128", coded_launch),
        "coded 512": coded(512, "fp8_block128", invariant_launch),
        "mxfp4 512": coded(512, "mxfp4", invariant_launch),
        "scaled 64": scaled(64, sm),
        "scaled 8192": scaled(8192, sm),
        "scaled by token": scaled(64, sm, None),
        "integers": scaled(8192, sm, None, "i8"),
        "few integers": scaled(7, sm, None, "i8"),
        "plain experts": product(16_384, "plain", experts_launch, sm, is_gated=True),
        "coded experts": product(1_024, "fp8_block128", experts_launch, sm, is_gated=True),
        "rounded experts": product(65_536, "fp8_block128", moe, sm, is_gated=True),
        "rounded experts' second": product(65_536, "fp8_block128", moe, sm, is_gated=False),
        "mxfp4 experts": product(1_024, "mxfp4", experts_launch, sm, is_gated=True),
        "lay out": (
            expert_tiles.lay_out_kernel,
            {"HAS_MAP": True, "EXPERTS": EXPERTS, "ROWS": 128} | {"CHUNK": expert_tiles.CHUNK},
            None,
            {},
        ),
        "sum": (
            experts.sum_kernel,
            {"TOP_K": TOP_K, "HAS_MAP": False, "BLOCK": experts.SUM_BLOCK},
            None,
            {},
        ),
    }


def describe(compiled, sm):
    ptx = compiled.asm["ptx"]
    found = {"shared": compiled.metadata.shared}
    found["tensor_memory"] = getattr(compiled.metadata, "tmem_size", None) or 0
    found["has_copies"] = "cp.async.bulk.tensor" in ptx
    found["matrix"] = sorted(set(re.findall(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync", ptx)))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = compile_kernels.tool("cuobjdump", "-res-usage", file.name)
        code = compile_kernels.tool("nvdisasm", "-c", file.name) if sm == 90 else ""
    stack = re.search(r"STACK:(\d+)", usage)
    found["stack"] = int(stack[1]) if stack else None
    found["instructions"] = sorted(set(re.findall(r"\b(HGMMA|QGMMA|IGMMA|UTMALDG)\b", code)))
    return found


def attempt(launch, sm):
    kernel, constants, how, types = launch
    try:
        compiled = compile_kernel(
            kernel, constants | overlap(sm), options(how) if how else {}, sm, SCALES | LISTS | types
        )
    except Exception as error:
        return {"refused": str(error) + str(error.__cause__ or "")}
    return describe(compiled, sm)


def main():
    sm = int(sys.argv[1])
    found = {name: attempt(launch, sm) for name, launch in launches(sm).items()}
    print(json.dumps({"limit": SHARED_BYTES[sm], "kernels": found}))


if __name__ == "__main__":
    main()
