"""As `compile_kernels.py`, of latent attention: the launches of DeepSeek-V3 in bfloat16."""

import json
import sys

import compile_kernels
from compile_kernels import options
from deepinfer_cuda.heuristics_latent import batched_launch, expanded_launch, latent_launch
from deepinfer_cuda.kernels import attend_expanded, attend_latent, batched, latent_rows

NUM_HEADS, RANK, ROPE, NOPE, VALUE, Q_RANK = 128, 512, 64, 128, 128, 1536
compile_kernels.POINTERS |= {"rows_ptr": "*bf16", "ends_ptr": "*i64", "partial_ptr": "*fp32"}
compile_kernels.UNALIGNED += ("num_shares", "num_skipped", "num_rows", "first_head")


def launches(sm):
    """name: the kernel, its constants, its options."""
    shared_bytes = compile_kernels.SHARED_BYTES[sm]
    sizes = (NUM_HEADS, RANK, ROPE, "bfloat16", sm // 10)
    decode = latent_launch(1, *sizes, is_decode=True, invariant=False)
    chunk = latent_launch(512, *sizes, is_decode=False, invariant=False)
    expanded = expanded_launch(NOPE, ROPE, VALUE, "bfloat16", shared_bytes)
    product = batched_launch(1, RANK, NOPE, "bfloat16")
    return {
        "latent decode": (
            attend_latent.latent_kernel, latent(decode, True), options(decode),
        ),
        "latent chunk": (attend_latent.latent_kernel, latent(chunk, False), options(chunk)),
        "merge latents": (
            attend_latent.merge_latents_kernel,
            {"RANK": RANK, "RANKS": RANK, "SHARES": 64, "WANTS_LSE": False},
            {"num_warps": 4},
        ),
        "gather": (attend_expanded.gather_kernel, {"WIDTH": RANK + ROPE, "DIMS": 1024}, {}),
        "expanded": (
            attend_expanded.expanded_kernel,
            {"RANK": RANK, "NOPE": NOPE, "ROPE": ROPE, "VALUE": VALUE, "NOPES": expanded.nope,
             "ROPES": expanded.rope, "VALUES": expanded.value, "ROWS": expanded.rows,
             "KEYS": expanded.keys, "WANTS_LSE": False, "PRECISION": expanded.precision},
            options(expanded),
        ),
        "batched": (
            batched.batched_kernel,
            {"ROWS": product.rows, "OUTPUTS": product.outputs, "BLOCK": product.block,
             "BLOCKS": 1, "IS_EVEN": True, "PRECISION": product.precision,
             "x_column_stride": 1, "weight_row_stride": 1},
            options(product),
        ),
        "latents": (
            latent_rows.latents_kernel,
            {"RANK": RANK, "ROPE": ROPE, "Q_RANK": Q_RANK, "RANKS": RANK, "HALF": ROPE // 2,
             "Q_RANKS": 2048, "INTERLEAVED": True},
            {"num_warps": 2},
        ),
    }  # fmt: skip


def latent(launch, is_decode):
    names = ("group", "queries", "rows", "keys", "precision")
    return {name.upper(): getattr(launch, name) for name in names} | {
        "RANK": RANK,
        "ROPE": ROPE,
        "RANKS": launch.rank,
        "ROPES": launch.rope,
        "IS_DECODE": is_decode,
        "IS_SHARED": is_decode,
        "WANTS_LSE": False,
    }


def main():
    sm = int(sys.argv[1])
    found = {
        name: compile_kernels.describe(compile_kernels.compile_kernel(*launch, sm))
        for name, launch in launches(sm).items()
    }
    print(json.dumps({"limit": compile_kernels.SHARED_BYTES[sm], "kernels": found}))


if __name__ == "__main__":
    main()
