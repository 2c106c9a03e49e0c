"""As `compile_kernels.py`, of sparse attention, its indexer, and what long chunks are made of.

On later architectures only what differs there: a compiler takes seconds for each.
"""

import json
import sys

import compile_kernels
import triton.language as tl
from compile_kernels import options
from deepinfer_core.ops.records import make_record
from deepinfer_cuda.heuristics_index import MAX_PICK_BLOCK, scores_launch
from deepinfer_cuda.heuristics_latent import rows_launch
from deepinfer_cuda.kernels import (
    attend_rows,
    compress,
    encode,
    gather_heads,
    index,
    index_pick,
    index_scores,
    join_keys,
    layer_norm,
    merge,
    sparse,
    streams,
    verify,
)
from deepinfer_cuda.kernels.records import layout_of

HEADS, RANK, ROPE = 128, 512, 64
STREAMS, HIDDEN_SIZE = 4, 7168
INDEX_HEADS, INDEX_DIM, TOP_K, PER_BLOCK = 64, 128, 2048, 64
OUT = {"pick": "*i32", "verify": "*i32", "compress": "*fp32", "encode": "*u8"}
LATER = ("rows 656", "rows 528", "scores of a chunk", "scores 132", "pick", "encode 132")
compile_kernels.POINTERS |= {
    **dict.fromkeys(("scores_ptr", "weights_ptr", "best_ptr", "lse1_ptr", "lse2_ptr"), "*fp32"),
    **dict.fromkeys(("list_ptr", "extra_list_ptr", "listed_ptr", "table_ptr"), "*i32"),
    **dict.fromkeys(("fn_ptr", "parts_ptr", "base_ptr", "scale_ptr", "post_ptr"), "*fp32"),
    **dict.fromkeys(("mix_ptr", "bias_ptr"), "*fp32"),
    **dict.fromkeys(("draft_ptr", "token_ptr"), "*i32"),
    "requests_ptr": "*i64",
    "positions_ptr": "*i64",
}
compile_kernels.INT32_POINTERS = ("tables_ptr",)
compile_kernels.UNALIGNED += (
    *("num_shares", "min_share", "width", "first_token", "num_tokens", "per_block", "num_chosen"),
    *("tokens_per_row", "rows_per_score", "num_blocks", "length", "list_stride", "listed_stride"),
    "extra_list_stride",
    *("num_pieces", "num_iters"),
)
compile_kernels.FLOATS += ("norm_eps", "turn_factor")


def rows(launch, record, extra_record=None):
    """The constants of attention to chosen rows; with records in two caches."""
    names = ("group", "rows", "keys", "rest", "precision")
    value = RANK if record is None or record.tail else RANK - ROPE
    return {name.upper(): getattr(launch, name) for name in names} | {
        "ROW_STRIDE": RANK + ROPE if record is None else record.num_bytes,
        "EXTRA_ROW_STRIDE": RANK + ROPE if extra_record is None else extra_record.num_bytes,
        "NUM_ROWS": TOP_K,
        "NUM_EXTRA": 0 if extra_record is None else 128,
        "PLACES": TOP_K,
        "EXTRA_PLACES": 1 if extra_record is None else 128,
        "DIM": RANK + ROPE if value == RANK else RANK,
        "VALUE": value,
        "VALUES": launch.value,
        "RECORD": layout_of(record),
        "EXTRA_RECORD": layout_of(extra_record),
    }


def scores(launch, record, dtype=tl.bfloat16):
    names = ("queries", "heads", "keys", "dims")
    return {name.upper(): getattr(launch, name) for name in names} | {
        "ROW": INDEX_DIM if record is None else record.num_bytes,
        "HEAD_DIM": INDEX_DIM,
        "LISTED": 0,
        "RECORD": layout_of(record),
        "ONE_SCALE": record is not None and record.num_scales == 1,
        "DTYPE": dtype,
        "PRECISION": "tf32",
    }


def plain_launches(sm):
    """name: the kernel, its constants, its options."""
    sizes = (HEADS, RANK + ROPE, RANK, "bfloat16", sm // 10)
    launch = rows_launch(1, *sizes, invariant=False)
    one = scores_launch(1, INDEX_HEADS, INDEX_DIM, "bfloat16", is_shared=False)
    many = scores_launch(4096, INDEX_HEADS, INDEX_DIM, "bfloat16", is_shared=True)
    picked = {"NUM_PICKED": TOP_K, "WANTS_SLOTS": True, "BLOCK": MAX_PICK_BLOCK}
    heads = {"HEAD_DIM": 128, "DIMS": 128}
    return {
        "rows": (attend_rows.rows_kernel, rows(launch, None), options(launch)),
        "merge rows": (
            attend_rows.merge_rows_kernel,
            {"VALUE": RANK, "VALUES": RANK, "SHARES": 64, "HAS_SINKS": True, "WANTS_LSE": False},
            {"num_warps": sparse.merge_warps(64)},
        ),
        "scores": (index_scores.scores_kernel, scores(one, None), options(one)),
        "scores of a chunk": (index_scores.scores_kernel, scores(many, None), options(many)),
        "block scores": (
            index_scores.block_scores_kernel,
            {"PER_BLOCK": PER_BLOCK, "ROWS": PER_BLOCK, "BLOCKS": index.BLOCKS_AT_A_TIME},
            {"num_warps": 4},
        ),
        "pick": (index_pick.pick_kernel, picked | {"LISTED": 0}, {"num_warps": 8}),
        "pick listed": (index_pick.pick_kernel, picked | {"LISTED": PER_BLOCK}, {"num_warps": 8}),
        "merge": (merge._merge_kernel, heads | {"ROWS": merge.ROWS, "WANTS_LSE": False}, {}),
        "gather heads": (
            gather_heads._gather_kernel, heads | {"TOKENS": gather_heads.TOKENS}, {},
        ),
        "join keys": (
            join_keys._join_kernel,
            {"NOPE": 128, "ROPE": ROPE, "NOPES": 128, "ROPES": ROPE, "TOKENS": join_keys.TOKENS},
            {},
        ),
        **stream_launches(),
    }  # fmt: skip


def stream_launches():
    """Of hyper-connections, and of the compressor beside them."""
    count, size = 2 * STREAMS + STREAMS * STREAMS, STREAMS * HIDDEN_SIZE
    tile = {"ROWS": streams.ROWS, "PIECE": streams.PIECE, "BLOCK": streams.BLOCK}
    stream = {"SIZE": HIDDEN_SIZE, "N": STREAMS, "DIMS": streams.DIMS}
    return {
        "project": (
            streams._project_kernel,
            tile | {"SIZE": size, "COUNT": count, "COUNTS": 32},
            {"num_warps": 4},
        ),
        "coefficients": (
            streams._coefficients_kernel,
            {"SIZE": size, "COUNT": count, "N": STREAMS, "NS": STREAMS, "IS_HEAD": False},
            {"num_warps": 1},
        ),
        "collapse": (streams._collapse_kernel, stream, {"num_warps": 2}),
        "post": (streams._post_kernel, stream, {"num_warps": 2}),
        "layer norm": (
            layer_norm._layer_kernel,
            {"HAS_RESIDUAL": False, "HAS_WEIGHT": True, "HAS_BIAS": True, "BLOCK": INDEX_DIM},
            {"num_warps": 1},
        ),
        "verify": (verify._verify_kernel, {"DRAFTS": 8}, {"num_warps": 1}),
        "compress": (
            compress._compress_kernel,
            {"WIDTH": 1024, "OUT": 512, "GROUP": 4, "TOKENS": 8, "CHANNELS": compress.CHANNELS},
            {"num_warps": 2},
        ),
    }


def coded_launches(sm):
    """Of caches of records; their codes are known from 8.9 on."""
    launches = {}
    for name, dim in (("656", RANK + ROPE), ("584", RANK), ("528", RANK)):
        record = make_record(name, dim, ROPE)
        value = RANK if name == "656" else RANK - ROPE
        sizes = (HEADS, dim, value, "bfloat16", sm // 10)
        launch = rows_launch(1, *sizes, invariant=False, is_coded=True)
        constants = rows(launch, record) | {"DIM": dim, "VALUE": value}
        launches[f"rows {name}"] = (attend_rows.rows_kernel, constants, options(launch))
    for name in ("132", "68"):
        record = make_record(name, INDEX_DIM)
        sizes = (1, INDEX_HEADS, INDEX_DIM, "bfloat16")
        one = scores_launch(*sizes, is_shared=False, is_decoded=record.num_scales > 1)
        launches[f"scores {name}"] = (
            index_scores.scores_kernel, scores(one, record), options(one),
        )  # fmt: skip
    for name, dim, turned in (("656", RANK + ROPE, 0), ("288", RANK, 0), ("132", INDEX_DIM, 128)):
        record = make_record(name, dim, ROPE)
        constants = {
            "WIDTH": dim, "DIMS": 1 << (dim - 1).bit_length(), "TAIL": record.tail,
            "NUM_BYTES": record.num_bytes, "TURNED": turned, "RECORD": layout_of(record),
        }  # fmt: skip
        launches[f"encode {name}"] = (encode._encode_kernel, constants, {"num_warps": 1})
    return launches


def main():
    sm = int(sys.argv[1])
    found = {}
    chosen = plain_launches(sm) | (coded_launches(sm) if sm >= 89 else {})
    if sm > 90:
        chosen = {name: chosen[name] for name in LATER}
    for name, launch in chosen.items():
        is_coded = launch[1].get("RECORD") is not None
        compile_kernels.POINTERS["out_ptr"] = OUT.get(name.split()[0], "*bf16")
        compile_kernels.POINTERS["cache_ptr"] = (
            "*u8" if is_coded else "*fp32" if name == "compress" else "*bf16"
        )
        compile_kernels.POINTERS["extra_cache_ptr"] = compile_kernels.POINTERS["cache_ptr"]
        found[name] = compile_kernels.describe(compile_kernels.compile_kernel(*launch, sm))
    print(json.dumps({"limit": compile_kernels.SHARED_BYTES[sm], "kernels": found}))


if __name__ == "__main__":
    main()
