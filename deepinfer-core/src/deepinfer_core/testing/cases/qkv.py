"""Cases of what lies between projections and attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, flatten, rounded, wide
from deepinfer_core.testing.cases.kv import NUM_BLOCKS, make_cache

NUM_POSITIONS = 300
EPS = 1e-6
BLOCK_SIZE = 4


def qkv_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_q_heads, num_kv_heads, head_dim, rotary_dim in ((6, 2, 64, 64), (3, 3, 20, 12)):
        shape = {
            "num_q_heads": sizes.pick("num_q_heads", num_q_heads),
            "num_kv_heads": sizes.pick("num_kv_heads", num_kv_heads),
            "head_dim": sizes.pick("head_dim", head_dim),
            "rotary_dim": sizes.pick("rotary_dim", rotary_dim),
        }
        for features in (
            frozenset[str](),
            frozenset({"qk_norm"}),
            frozenset({"qk_norm", "strided_cache"}),
            frozenset({"interleaved"}),
        ):
            name = "-".join(("x".join(map(str, shape.values())), *sorted(features)))
            cases.append(Case(name, partial(_qkv, shape, features), features, shape))
    return cases


def _qkv(shape: dict[str, int], features: frozenset[str], make: Maker, num_tokens: int) -> Call:
    num_q, num_kv, size = shape["num_q_heads"], shape["num_kv_heads"], shape["head_dim"]
    heads = make.normal(num_tokens, num_q + 2 * num_kv, size)
    between = "layers" if "strided_cache" in features else None
    geometry = {"block_size": BLOCK_SIZE, "num_kv_heads": num_kv, "head_dim": size}
    caches = make_cache(geometry, NUM_BLOCKS, between, make)
    slots = _slots(make, num_tokens)
    positions, cos_sin = _rotation(shape["rotary_dim"], make, num_tokens)
    weights: list[Tensor | None] = [None, None]
    if "qk_norm" in features:
        weights = [make.normal(size), make.normal(size)]
    layout = "interleaved" if "interleaved" in features else "half"
    q, k, v = wide(heads).split_with_sizes((num_q, num_kv, num_kv), dim=1)
    q, k = (
        _turn(_normalise(x, weight, heads.dtype), cos_sin[positions], layout)
        for x, weight in zip((q, k), weights, strict=True)
    )
    expected = [q]
    for cache, rows in zip(caches, (k, v), strict=True):
        expected.append(_stored(cache, rows, slots))
    kwargs = {
        "qkv": heads,
        "num_q_heads": num_q,
        "positions": positions,
        "cos_sin": cos_sin,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "slot_mapping": slots,
        "q_weight": weights[0],
        "k_weight": weights[1],
        "eps": EPS,
        "layout": layout,
    }
    return Call(
        kwargs,
        expected,
        observe=lambda result: [result, *caches],
        writes=frozenset({"k_cache", "v_cache"}),
    )


def latents_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for rank, rope_dim, q_rank in ((64, 16, 48), (20, 6, 0)):
        shape = {
            "kv_rank": sizes.pick("kv_rank", rank),
            "rope_head_dim": sizes.pick("rope_head_dim", rope_dim),
            "q_rank": sizes.pick("q_rank", q_rank),
        }
        for features in (
            frozenset[str](),
            frozenset({"strided_cache"}),
            frozenset({"interleaved", "strided_cache"}),
        ):
            name = "-".join(("x".join(map(str, shape.values())), *sorted(features)))
            cases.append(Case(name, partial(_latents, shape, features), features, shape))
    return cases


def _latents(shape: dict[str, int], features: frozenset[str], make: Maker, num_tokens: int) -> Call:
    rank, rope_dim, q_rank = shape.values()
    projected = make.normal(num_tokens, q_rank + rank + rope_dim)
    q, row = projected.split_with_sizes((q_rank, rank + rope_dim), dim=1)
    between = "layers" if "strided_cache" in features else None
    geometry = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_dim": rank + rope_dim}
    cache = make_cache(geometry, NUM_BLOCKS, between, make)[0].squeeze(2)
    slots = _slots(make, num_tokens)
    positions, cos_sin = _rotation(rope_dim, make, num_tokens)
    weight, q_weight = make.normal(rank), make.normal(q_rank)
    layout = "interleaved" if "interleaved" in features else "half"
    c = _normalise(wide(row[:, :rank]), weight, make.dtype)
    k = _turn(wide(row[:, None, rank:]), cos_sin[positions], layout).squeeze(1)
    expected = [_stored(cache, torch.cat([c, k], dim=1), slots)]
    kwargs = {
        "row": row,
        "positions": positions,
        "cos_sin": cos_sin,
        "cache": cache,
        "slot_mapping": slots,
        "weight": weight,
        "eps": EPS,
        "layout": layout,
        "q": None,
        "q_weight": None,
    }
    if q_rank:
        kwargs |= {"q": q, "q_weight": q_weight}
        expected.insert(0, _normalise(wide(q), q_weight, make.dtype))
    return Call(
        kwargs,
        expected,
        observe=lambda result: [*flatten(result), cache],
        writes=frozenset({"cache"}),
    )


def _slots(make: Maker, num_tokens: int) -> Tensor:
    slots = make.permutation((NUM_BLOCKS - 1) * BLOCK_SIZE)[:num_tokens] + BLOCK_SIZE
    slots = slots.int()
    if num_tokens > 1:
        slots[1::5] = -1
    return slots


def _rotation(rotary_dim: int, make: Maker, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Positions, and cosines and sines."""
    positions = make.integers(0, NUM_POSITIONS, num_tokens, dtype=torch.int64)
    rates = 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.arange(NUM_POSITIONS).unsqueeze(1) * rates
    return positions, torch.cat([angles.cos(), angles.sin()], dim=1).to(make.device)


def _stored(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """What the cache holds afterwards."""
    after = wide(cache)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            after[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = row
    return after


def _normalise(x: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    if weight is None:
        return x
    unit = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
    return wide(rounded(wide(rounded(unit, dtype)) * wide(weight), dtype))


def _turn(x: Tensor, cos_sin: Tensor, layout: str) -> Tensor:
    cos, sin = wide(cos_sin).unsqueeze(1).chunk(2, dim=-1)
    size = cos_sin.shape[1]
    places = torch.arange(size)
    first, second = places[: size // 2], places[size // 2 :]
    if layout == "interleaved":
        first, second = places[0::2], places[1::2]
    out = x.clone()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


OPS = {"attn.qkv": OpCases(qkv_cases), "attn.latents": OpCases(latents_cases)}
