"""Cases of the ops that write the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.compare import assert_same_bits

NUM_BLOCKS = 12
FLOATS = ("float32", "bfloat16", "float16")


def store_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for block_size, num_heads, head_dim in ((16, 3, 64), (4, 1, 20)):
        shape = {
            "block_size": sizes.pick("block_size", block_size),
            "num_kv_heads": sizes.pick("num_kv_heads", num_heads),
            "head_dim": sizes.pick("head_dim", head_dim),
        }
        name = "x".join(str(size) for size in shape.values())
        # Blocks of one tensor; of a page shared with other layers; a page of any size.
        for between in (None, "layers", "odd"):
            features = frozenset({"strided_cache"} if between else ())
            build = partial(_store, shape, between)
            suffix = f"-{between}" if between else ""
            bound = {key: shape[key] for key in ("head_dim", "num_kv_heads")}
            cases.append(Case(f"{name}{suffix}", build, features, bound))
            build = partial(_store, shape, between, is_latent=True)
            latent = features | {"latent"}
            cases.append(Case(f"{name}{suffix}-latent", build, latent, bound))
            build = partial(_store, shape, between, is_latent=True, is_bytes=True)
            name_of_bytes = f"{name}{suffix}-bytes"
            cases.append(Case(name_of_bytes, build, latent, bound, dtypes=("uint8",)))
    return list({case.name: case for case in cases}.values())


def copy_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case("pages", _copy_blocks, token_counts=(1, 3), dtypes=("uint8", *FLOATS))]


def make_cache(
    shape: dict[str, int], num_blocks: int, between: str | None, make: Maker
) -> tuple[Tensor, Tensor]:
    """Key and value caches [num_blocks, block_size, Hk, D] of garbage, by kind of stride."""
    block = (shape["block_size"], shape["num_kv_heads"], shape["head_dim"])
    if between is None:
        k, v = (make.normal(num_blocks, *block) for _ in range(2))
        return k, v
    if between == "layers":
        pool = make.normal(num_blocks, 3, *block)
        return pool[:, 1], pool[:, 2]
    size = block[0] * block[1] * block[2]
    pool = make.normal(num_blocks, 2 * size + 1)
    k, v = (pool[:, i * size : (i + 1) * size].view(num_blocks, *block) for i in range(2))
    return k, v


def _store(
    shape: dict[str, int],
    between: str | None,
    make: Maker,
    num_tokens: int,
    *,
    is_latent: bool = False,
    is_bytes: bool = False,
) -> Call:
    block_size = shape["block_size"]
    token = (shape["num_kv_heads"], shape["head_dim"])
    k, v = make.rows(num_tokens, *token), make.rows(num_tokens, *token)
    caches = make_cache(shape, NUM_BLOCKS, between, make)
    if is_bytes:
        k, caches = k.mul(50).byte(), (caches[0].mul(50).byte(), caches[1].mul(50).byte())
    # Block 0 is nobody's.
    slots = (make.permutation((NUM_BLOCKS - 1) * block_size)[:num_tokens] + block_size).int()
    if num_tokens > 1:
        slots[1::5] = -1
    expected = []
    written = caches[:1] if is_latent else caches
    for cache, rows in zip(written, (k, v), strict=False):
        after = cache.cpu().clone()
        for row, slot in zip(rows.cpu(), slots.tolist(), strict=True):
            if slot >= 0:
                after[slot // block_size, slot % block_size] = row
        expected.append(after)
    kwargs = {
        "k": k,
        "v": None if is_latent else v,
        "k_cache": caches[0],
        "v_cache": None if is_latent else caches[1],
        "slot_mapping": slots,
    }
    names = {"k_cache"} if is_latent else {"k_cache", "v_cache"}
    return _exact_call(kwargs, written, expected, frozenset(names))


def _copy_blocks(make: Maker, num_pages: int) -> Call:
    pool = make.integers(0, 256, NUM_BLOCKS, 77, dtype=torch.uint8)
    order = make.permutation(NUM_BLOCKS)
    src, dst = order[:num_pages], order[num_pages : 2 * num_pages]
    after = pool.cpu().clone()
    after[dst.cpu()] = after[src.cpu()]
    kwargs = {"pool": pool, "src": src, "dst": dst}
    return _exact_call(kwargs, [pool], [after], frozenset({"pool"}))


def compress_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for size, width, overlaps in ((4, 64, True), (8, 32, False), (3, 20, True)):
        for between in (None, "layers"):
            features = frozenset({"strided_cache"} if between else ())
            build = partial(_compress, size, width, overlaps, between)
            kind = "overlap" if overlaps else "apart"
            name = "-".join((kind, f"{size}x{width}", *features))
            cases.append(Case(name, build, features, {"row_width": width, "group_size": size}))
    return cases


def _compress(
    size: int, width: int, overlaps: bool, between: str | None, make: Maker, num_groups: int
) -> Call:
    maker = Maker(torch.float32, make.device, seed=num_groups)
    shape = {"block_size": 5, "num_kv_heads": 1, "head_dim": 2 * width}
    cache = make_cache(shape, NUM_BLOCKS, between, maker)[0].squeeze(2)
    bias = maker.normal(size, width)
    count = 2 * size if overlaps else size
    rows = maker.integers(5, NUM_BLOCKS * 5, num_groups, count, dtype=torch.int32)
    if overlaps and num_groups > 1:
        rows[1, :size] = -1  # the first group of a request
    raw = wide(cache.flatten(0, 1)[rows.long().clamp(min=0)])
    values, gates = raw[..., :width], raw[..., width:]
    if overlaps:
        half, tall = width // 2, wide(bias)
        values = torch.cat((values[:, :size, :half], values[:, size:, half:]), dim=1)
        gates = torch.cat(
            (gates[:, :size, :half] + tall[:, :half], gates[:, size:, half:] + tall[:, half:]), 1
        )
    else:
        gates = gates + wide(bias)
    gates = gates.masked_fill((rows < 0).unsqueeze(2).cpu(), -float("inf"))
    pooled = (gates.softmax(dim=1) * values).sum(dim=1)
    kwargs = {"cache": cache, "rows": rows, "position_bias": bias, "overlaps": overlaps}
    return Call(kwargs, [pooled])


def _exact_call(
    kwargs: dict[str, Any],
    written: Sequence[Tensor],
    expected: Sequence[Tensor],
    writes: frozenset[str],
) -> Call:
    def check(outputs: Sequence[Tensor]) -> None:
        for name, output, wanted in zip(sorted(writes), outputs, expected, strict=True):
            assert_same_bits(output, wanted, name)

    return Call(kwargs, expected, observe=lambda result: written, writes=writes, check=check)


OPS = {
    "kv.store": OpCases(store_cases),
    "kv.copy_blocks": OpCases(copy_cases),
    "kv.compress": OpCases(compress_cases, rows=("rows",)),
}
