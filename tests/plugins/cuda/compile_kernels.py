"""Compiles the plugin's kernels for one architecture and prints what came out, as JSON.

    python compile_kernels.py SM

A program of its own: LLVM ends the process where it cannot select an instruction. The launches are
those of a model in bfloat16 with 32 query heads, 8 key heads and heads of 128.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from deepinfer_cuda.heuristics_attention import LANES, decode_launch, lanes_launch, prefill_launch
from deepinfer_cuda.kernels import (
    act,
    attend,
    decode,
    lanes,
    norm,
    qkv,
    rope,
    sample,
    sample_logprobs,
    sample_stages,
    store,
)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

GROUP, HEAD_DIM, HIDDEN_SIZE = 4, 128, 4096
POINTERS = {"positions_ptr": "*i64", "table_ptr": "*fp32", "best_ids_ptr": "*i32"}
POINTERS |= dict.fromkeys(("partial_ptr", "partial_peaks_ptr", "partial_totals_ptr"), "*fp32")
LOGITS = ("logits_ptr", "packed_ptr", "values_ptr", "chosen_ptr", "best_ptr")
PARAMETERS = ("temperature_ptr", "min_p_ptr", "top_p_ptr")
PENALTIES = ("repetition_ptr", "presence_ptr", "frequency_ptr")
POINTERS |= dict.fromkeys((*LOGITS, *PARAMETERS, *PENALTIES), "*fp32")
INT64S = ("seeds_ptr", "sample_indices_ptr", "token_ids_ptr", "top_k_ptr", "rows_ptr", "ids_ptr")
POINTERS |= dict.fromkeys(INT64S, "*i64")
POINTERS |= dict.fromkeys(("chosen_ids_ptr", "ranks_ptr", "bitmask_ptr", "counts_ptr"), "*i32")
POINTERS |= {"out_ptr": "*i32", "prompt_mask_ptr": "*i1"}
INT32_POINTERS = ("tables_ptr", "starts_ptr", "lens_ptr", "requests_ptr", "firsts_ptr", "slots_ptr")
FLOATS = ("scale", "softcap", "eps", "limit")
UNALIGNED = ("size", "window", "num_q_heads", "num_kv_heads", "num_splits", "num_heads")
"""Numbers whose divisibility by 16 must not be taken for granted."""
SHARED_BYTES = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}
"""Of shared memory that an architecture has for one program; a compiler does not look."""
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def attention(**switches):
    return {"HAS_WINDOW": False, "HAS_SOFTCAP": False} | switches


def overlap(sm):
    return {"OVERLAP": sm >= 90}


def attention_launches(sm):
    limit = SHARED_BYTES[sm]
    chunk = prefill_launch(GROUP, HEAD_DIM, "bfloat16", limit)
    single = decode_launch(1, 8, GROUP, HEAD_DIM, "bfloat16", limit)
    lane = lanes_launch(GROUP, HEAD_DIM, "bfloat16", limit)
    sizes = {"HEAD_DIM": HEAD_DIM, "GROUP": GROUP}
    last = {"HAS_SINKS": False, "WANTS_LSE": False}
    merged = {"HEAD_DIM": HEAD_DIM, "DIMS": single.dims} | last
    lane_sizes = tile(lane) | sizes | attention(QUERIES=lane.queries_per_tile, LANES=LANES) | last
    lane_options = options(lane) | {"enable_fp_fusion": False}
    single_sizes = sizes | attention(
        BLOCK_SIZE=16,
        HEADS=single.heads,
        ROWS=single.rows,
        TOKENS=single.tokens,
        DIMS=single.dims,
        PREFETCHED=single.prefetched,
        PRECISION=single.precision,
    )
    return {
        "chunk": (
            attend.chunk_kernel,
            tile(chunk) | sizes | attention(QUERIES=chunk.queries_per_tile) | last,
            options(chunk),
        ),
        "decode": (
            decode.decode_kernel,
            single_sizes | last | overlap(sm) | {"IS_SPLIT": True},
            options(single),
        ),
        "merge": (
            decode.merge_kernel,
            merged | overlap(sm) | {"SPLITS": triton.next_power_of_2(single.num_splits)},
            {"num_warps": 2},
        ),
        "lanes": (lanes.lanes_kernel, lane_sizes | {"IS_SHARED": False}, lane_options),
        "shared lanes": (lanes.lanes_kernel, lane_sizes | {"IS_SHARED": True}, lane_options),
        "merge lanes": (
            lanes.merge_lanes_kernel,
            merged | {"LANES": LANES},
            {"num_warps": 1, "enable_fp_fusion": False},
        ),
    }


def sampling_launches():
    whole = {"HAS_MIN_P": True, "HAS_TOP_K": True, "HAS_TOP_P": True, "BLOCK": sample_stages.BLOCK}
    many = {"num_warps": 16}
    return {
        "best": (
            sample._best_kernel,
            {"HAS_IDS": False, "HAS_NOISE": True, "BLOCK": sample.BLOCK},
            {"num_warps": 8},
        ),
        "pick": (sample._pick_kernel, {"PIECES": 64}, {"num_warps": 1}),
        "mask": (sample._mask_kernel, {"HAS_ROWS": True, "BLOCK": sample.BLOCK}, {}),
        "penalties": (sample._penalties_kernel, {"BLOCK": sample.BLOCK}, {"num_warps": 8}),
        "stages": (sample_stages._whole_kernel, whole, many),
        "candidates": (sample_stages._candidates_kernel, whole | {"CANDIDATES": 64}, many),
        "logprobs": (
            sample_logprobs._logprobs_kernel,
            {"BEST": 16, "BLOCK": sample_stages.BLOCK},
            many,
        ),
    }


def launches(sm):
    """name: the kernel, its constants, its options."""
    block = triton.next_power_of_2(HIDDEN_SIZE)
    return attention_launches(sm) | sampling_launches() | {
        "norm": (
            norm._rms,
            {"HAS_RESIDUAL": True, "HAS_WEIGHT": True, "BLOCK": block} | overlap(sm),
            {"num_warps": norm.num_warps(block)},
        ),
        "act": (act._silu_mul, {"HAS_LIMIT": False, "BLOCK": act.BLOCK} | overlap(sm), {}),
        "rope": (
            rope._rotate,
            {
                "INTERLEAVED": False,
                "INVERSE": False,
                "HEADS": rope.HEADS,
                "PAIRS": HEAD_DIM // 2,
                "REST": 0,
            },
            {},
        ),
        "store": (store._store, {"HAS_VALUES": True, "BLOCK": 1024}, {}),
        "qkv": (
            qkv._qkv_kernel,
            {
                "HEAD_DIM": HEAD_DIM,
                "ROTARY_DIM": HEAD_DIM,
                "HALF": HEAD_DIM // 2,
                "REST": 0,
                "HEADS": qkv.HEADS,
                "INTERLEAVED": False,
                "HAS_NORM": True,
                **overlap(sm),
            },
            {"num_warps": 2},
        ),
    }  # fmt: skip


def tile(launch):
    names = ("rows", "keys", "dims", "precision")
    return {name.upper(): getattr(launch, name) for name in names}


def options(launch):
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages}


def type_of(name, constants):
    """What a launch gives for an argument of this name."""
    if name in constants:
        return "constexpr"
    if name.endswith(INT32_POINTERS):
        return "*i32"
    if name.endswith("lse_ptr"):
        return "*fp32"
    if name.endswith("_ptr"):
        return POINTERS.get(name, "*bf16")
    return "fp32" if name in FLOATS else "i32"


def compile_kernel(kernel, constants, options, sm, types=None):
    """Arguments have the types that their names say, or `types` does."""
    names = kernel.arg_names
    types = types or {}
    signature = {name: types.get(name) or type_of(name, constants) for name in names}
    aligned = [
        (index,)
        for index, name in enumerate(names)
        if signature[name].startswith("*") or (signature[name] == "i32" and name not in UNALIGNED)
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={place: [["tt.divisibility", 16]] for place in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)


def describe(compiled):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "-res-usage", file.name)
        code = tool("nvdisasm", "-c", file.name)
    stack = re.search(r"STACK:(\d+)", usage)
    return {
        "shared": compiled.metadata.shared,
        "stack": int(stack[1]) if stack else None,
        "has_wgmma": "wgmma" in compiled.asm["ptx"],
        "has_hgmma": "HGMMA" in code if code else None,
    }


def tool(name, *words):
    """What a tool of Triton's prints; nothing where this build of Triton has none."""
    path = TOOLS / name
    if not path.exists():
        return ""
    return subprocess.run([path, *words], capture_output=True, text=True).stdout


def main():
    sm = int(sys.argv[1])
    compiled = {name: compile_kernel(*launch, sm) for name, launch in launches(sm).items()}
    found = {name: describe(kernel) for name, kernel in compiled.items()}
    print(json.dumps({"limit": SHARED_BYTES[sm], "kernels": found}))


if __name__ == "__main__":
    main()
