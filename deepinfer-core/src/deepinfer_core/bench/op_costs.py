"""What a call of an op must at least move and multiply, from its arguments.

A lower bound for any kernel of the op: inputs are read once, results written once; of caches,
tables and experts what the call touches. Reads lengths from the device: never in a step that is
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.spec import OP_SPECS

Arguments = Mapping[str, Any]

PARTLY_READ = frozenset(
    {
        "cache", "cos_sin", "counts", "extra_cache", "k_cache", "pool", "prompt_mask", "table",
        "v_cache", "w13", "w13_scales", "w2", "w2_scales",
    }
)  # fmt: skip
"""Arguments of which a call touches some rows; the functions of the ops count those."""
FP8 = "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class OpCost:
    """Of one call, or of several whose factors are of one dtype."""

    num_bytes: int = 0
    flop: int = 0
    dtype: str = "float32"
    """Of the factors that are multiplied, which sets how fast a device can."""


def op_cost(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> OpCost:
    """The least that a call costs. Waits for the device.

    Args:
        name: of the op; one without large products costs its bytes alone.
        result: what the call returned.
    """
    whole = num_bytes(whole_arguments(name, args, kwargs))
    whole += num_bytes(result if isinstance(result, tuple) else (result,))
    arguments = OP_SPECS[name].signature.bind(*args, **kwargs).arguments
    more = _COSTS.get(name, _nothing)(arguments, result)
    return OpCost(whole + more.num_bytes, more.flop, more.dtype)


def whole_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    """Those that a call reads from end to end."""
    arguments = OP_SPECS[name].signature.bind(*args, **kwargs).arguments
    return [value for key, value in arguments.items() if key not in PARTLY_READ]


def num_bytes(values: Iterable[object]) -> int:
    """Bytes of the tensors among them, each once."""
    # By identity: what a kernel prepared may have no address.
    tensors = {id(value): value for value in values if isinstance(value, Tensor)}
    return sum(each.numel() * each.element_size() for each in tensors.values())


def _nothing(arguments: Arguments, result: Any) -> OpCost:
    return OpCost()


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _dense(a: Arguments, result: Tensor) -> OpCost:
    return OpCost(0, 2 * a["x"].numel() * result.shape[-1], _dtype(a["x"]))


def _gated(a: Arguments, result: Tensor) -> OpCost:
    return OpCost(0, 2 * a["x"].numel() * 2 * result.shape[-1], _dtype(a["x"]))


def _scaled(a: Arguments, result: Tensor) -> OpCost:
    return OpCost(0, 2 * a["q"].numel() * result.shape[-1], _dtype(a["q"]))


def _coded(a: Arguments, result: Tensor) -> OpCost:
    return OpCost(0, 2 * a["x"].numel() * result.shape[-1], FP8)


def _experts(a: Arguments, result: Tensor) -> OpCost:
    """Of the experts that any token goes to."""
    ids, w13 = a["ids"].long(), a["w13"]
    if a.get("expert_map") is not None:
        ids = a["expert_map"].long()[ids]
    ids = ids[ids >= 0]
    matrices = [a[name] for name in ("w13", "w2", "w13_scales", "w2_scales") if name in a]
    each = sum(matrix[0].numel() * matrix.element_size() for matrix in matrices)
    flop = 2 * ids.numel() * (w13.shape[1] + w13.shape[1] // 2) * a["x"].shape[1]
    return OpCost(each * ids.unique().numel(), flop, FP8 if "scheme" in a else _dtype(a["x"]))


def _seen(meta: AttentionMeta, window: int | None = None, per_row: int = 1) -> tuple[int, int]:
    """Pairs of a query and a row that it sees, and rows that are read, over all requests."""
    pairs = rows = 0
    for num_queries, last in zip(meta.query_lens, meta.seq_lens.tolist(), strict=True):
        first = last - num_queries + 1
        widest = window or last
        # Without a window the queries would see first, first + 1, ..., last tokens.
        num_cut = max(0, last - max(first, widest) + 1)
        num_whole = num_queries - num_cut
        seen = num_cut * widest + num_whole * first + num_whole * (num_whole - 1) // 2
        pairs += seen // per_row
        rows += (last - max(0, first - widest)) // per_row
    return pairs, rows


def _row_bytes(cache: Tensor) -> int:
    row = cache[0, 0]
    return row.numel() * row.element_size()


def _paged(a: Arguments, result: object) -> OpCost:
    pairs, rows = _seen(a["meta"], a.get("window"))
    q, k_cache, v_cache = a["q"], a["k_cache"], a["v_cache"]
    planes = [k_cache] if v_cache is k_cache else [k_cache, v_cache]
    flop = 2 * pairs * q.shape[1] * (k_cache.shape[-1] + v_cache.shape[-1])
    return OpCost(rows * sum(map(_row_bytes, planes)), flop, _dtype(q))


def _mla(a: Arguments, result: object) -> OpCost:
    pairs, rows = _seen(a["meta"])
    q, rank = a["q_latent"], a["q_latent"].shape[2]
    flop = 2 * pairs * q.shape[1] * (2 * rank + a["q_rope"].shape[2])
    return OpCost(rows * _row_bytes(a["cache"]), flop, _dtype(q))


def _mla_prefill(a: Arguments, result: Any) -> OpCost:
    """Keys and values of all rows are expanded once."""
    pairs, rows = _seen(a["meta"])
    q, o = a["q"], result[0] if isinstance(result, tuple) else result
    flop = 2 * pairs * q.shape[1] * (q.shape[2] + o.shape[2]) + 2 * rows * a["weight"].numel()
    return OpCost(rows * _row_bytes(a["cache"]), flop, _dtype(q))


def _sparse_mla(a: Arguments, result: object) -> OpCost:
    q, read, pairs = a["q"], 0, 0
    for cache, rows in ((a["cache"], a["rows"]), (a.get("extra_cache"), a.get("extra_rows"))):
        if cache is not None and rows is not None:
            named = rows[rows >= 0]
            pairs += named.numel()
            read += named.unique().numel() * _row_bytes(cache)
    return OpCost(read, 2 * pairs * q.shape[1] * (q.shape[2] + a["value_dim"]), _dtype(q))


def _select(a: Arguments, result: object) -> OpCost:
    q, per_row = a["q"], a.get("tokens_per_row", 1)
    pairs, rows = _seen(a["meta"], per_row=per_row)
    if a.get("blocks") is not None:
        pairs = min(pairs, int((a["blocks"] >= 0).sum()) * a["rows_per_block"])
        rows = min(rows, pairs)
    return OpCost(rows * _row_bytes(a["cache"]), 2 * pairs * q.shape[1] * q.shape[2], _dtype(q))


def _store(a: Arguments, result: object) -> OpCost:
    return OpCost(num_bytes((a["k"], a["v"])))


def _qkv(a: Arguments, result: Tensor) -> OpCost:
    """What is no query is written to the cache."""
    return OpCost(num_bytes((a["qkv"],)) - num_bytes((result,)))


def _compress(a: Arguments, result: object) -> OpCost:
    named = a["rows"][a["rows"] >= 0]
    return OpCost(named.unique().numel() * _row_bytes(a["cache"]))


def _copy_blocks(a: Arguments, result: object) -> OpCost:
    return OpCost(2 * a["src"].numel() * num_bytes((a["pool"][0],)))


def _lookup(a: Arguments, result: Tensor) -> OpCost:
    return OpCost(result.numel() * a["table"].element_size())


def _mix(a: Arguments, result: object) -> OpCost:
    return OpCost(0, 2 * a["streams"].shape[0] * a["fn"].numel(), _dtype(a["fn"]))


def _penalties(a: Arguments, result: object) -> OpCost:
    rows = (a["prompt_mask"][0], a["counts"][0])
    return OpCost(a["slots"].numel() * sum(num_bytes((row,)) for row in rows))


_COSTS: dict[str, Callable[[Arguments, Any], OpCost]] = {
    "attn.mla": _mla,
    "attn.mla_prefill": _mla_prefill,
    "attn.paged": _paged,
    "attn.qkv": _qkv,
    "attn.sparse_mla": _sparse_mla,
    "engram.lookup": _lookup,
    "gemm.batched": _dense,
    "gemm.coded": _coded,
    "gemm.dense": _dense,
    "gemm.gated": _gated,
    "gemm.scaled": _scaled,
    "hc.head": _mix,
    "hc.pre": _mix,
    "index.select": _select,
    "kv.compress": _compress,
    "kv.copy_blocks": _copy_blocks,
    "kv.store": _store,
    "moe.coded": _experts,
    "moe.experts": _experts,
    "sample.penalties": _penalties,
}
