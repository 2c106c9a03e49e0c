"""Cases of products with weights that stay codes with scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.cases.act import LIMIT, gated

BLOCKS = {"fp8_block128": 128, "fp8_block32": 32}
SCHEMES = (*BLOCKS, "mxfp4")
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
GROUP = 32
ROUNDED_GROUP = 128
ROUNDED_DISTANCE = 1e-2
"""Of a row from one of two truths, which are about 0.026 apart, relative to its length."""
FEW = (1, 7, 33)
MANY = (1, 33, 300)
"""With so many that rounding them pays."""


def gemm_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for scheme in SCHEMES:
        for out_size, in_size in ((256, 384), (130, 192)):
            out_size = sizes.pick("out_features", out_size)
            in_size = sizes.pick("in_features", in_size)
            shape = {"in_features": in_size, "out_features": out_size}
            for features in ((), ("bias",), ("rounded_rows",), ("bias", "rounded_rows")):
                name = "-".join((scheme, f"{in_size}to{out_size}", *features))
                build = partial(_gemm, scheme, out_size, in_size, frozenset(features))
                cases.append(_case(name, build, frozenset(features), shape, scheme))
    return list({case.name: case for case in cases}.values())


def experts_cases(sizes: Sizes) -> Sequence[Case]:
    shape = {
        "hidden_size": sizes.pick("hidden_size", 64),
        "intermediate_size": sizes.pick("intermediate_size", 64),
        "num_experts": sizes.pick("num_experts", 4),
        "top_k": sizes.pick("top_k", 2),
    }
    variants = [
        (*plain, *permission)
        for permission in ((), ("rounded_rows",))
        for plain in ((), ("limit",), ("expert_map",))
    ]
    return [
        _case(
            "-".join((scheme, *features)),
            partial(_experts, scheme, shape, frozenset(features)),
            frozenset(features),
            shape,
            scheme,
        )
        for scheme in SCHEMES
        for features in variants
    ]


def _case(
    name: str,
    build: Callable[[Maker, int], Call],
    features: frozenset[str],
    shape: dict[str, int],
    scheme: str,
) -> Case:
    return Case(name, build, features, shape, MANY if "rounded_rows" in features else FEW, scheme)


def _gemm(
    scheme: str,
    out_size: int,
    in_size: int,
    features: frozenset[str],
    make: Maker,
    num_tokens: int,
) -> Call:
    x = make.rows(num_tokens, in_size)
    codes, scales, weight = _matrix(scheme, make, out_size, in_size)
    bias = make.normal(out_size) if "bias" in features else None
    offset = 0.0 if bias is None else wide(bias)
    y = wide(x) @ weight.T + offset
    kwargs = {"x": x, "codes": codes, "scales": scales, "scheme": scheme, "bias": bias}
    if "rounded_rows" in features:
        truths = [y, _rounded_rows(x) @ weight.T + offset]
        return Call(kwargs, [], check=partial(_check_rows, truths))
    return Call(kwargs, [y])


def _experts(
    scheme: str, shape: dict[str, int], features: frozenset[str], make: Maker, num_tokens: int
) -> Call:
    hidden, ffn, num_experts, top_k = shape.values()
    # All positive: sums that cancel would amplify the roundings between the two products.
    x = make.rows(num_tokens, hidden).abs()
    up = [_matrix(scheme, make, 2 * ffn, hidden, signed=False) for _ in range(num_experts)]
    down = [_matrix(scheme, make, hidden, ffn, signed=False) for _ in range(num_experts)]
    kwargs: dict[str, Any] = {"x": x, "scheme": scheme}
    for name, matrices in (("w13", up), ("w2", down)):
        kwargs[name], kwargs[f"{name}_scales"] = (
            torch.stack([matrix[part] for matrix in matrices]) for part in range(2)
        )
    local = list(range(num_experts))
    if "expert_map" in features:
        local = [-1, *reversed(local)]  # the first of them is not here
        kwargs["expert_map"] = torch.tensor(local, dtype=torch.int32, device=make.device)
    limit = kwargs["limit"] = LIMIT if "limit" in features else None
    picks = [make.permutation(len(local))[:top_k] for _ in range(num_tokens)]
    ids = torch.stack(picks or [torch.empty(0, top_k, device=make.device)]).int()
    kwargs["ids"] = ids = ids.view(num_tokens, top_k)
    kwargs["weights"] = weights = make.normal(num_tokens, top_k, dtype=torch.float32).abs()
    pairs = [None if expert < 0 else (up[expert][2], down[expert][2]) for expert in local]
    if "rounded_rows" not in features:
        return Call(kwargs, [_mixture(wide, x, ids, weights, pairs, limit)])
    truths = [_mixture(rows, x, ids, weights, pairs, limit) for rows in (wide, _rounded_rows)]
    return Call(kwargs, [], check=partial(_check_rows, truths))


def _mixture(
    rows: Callable[[Tensor], Tensor],
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    pairs: Sequence[tuple[Tensor, Tensor] | None],
    limit: float | None,
) -> Tensor:
    """What experts give in float64 for rows, which both products see through `rows`."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for expert, pair in enumerate(pairs):
        tokens, slots = (ids == expert).cpu().nonzero(as_tuple=True)
        if pair is None or not len(tokens):
            continue
        gate, linear = (rows(x[tokens.to(x.device)]) @ pair[0].T).chunk(2, dim=1)
        out = rows(gated(gate, linear, limit)) @ pair[1].T
        y.index_add_(0, tokens, out * wide(weights)[tokens, slots, None])
    return y


def _rounded_rows(x: Tensor) -> Tensor:
    """Rows as they come back from `quant.act` under `fp8_block128`, float64 on the CPU."""
    groups = [group.float().cpu() for group in torch.split(x, ROUNDED_GROUP, dim=1)]
    scales = [group.abs().amax(dim=1, keepdim=True) / 448.0 for group in groups]
    scales = [torch.where(scale > 0, scale, 1.0) for scale in scales]
    codes = [
        (group / scale).to(torch.float8_e4m3fn) for group, scale in zip(groups, scales, strict=True)
    ]
    pairs = zip(codes, scales, strict=True)
    return torch.cat([wide(code.float()) * wide(scale) for code, scale in pairs], dim=1)


def _check_rows(truths: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Near to one of the truths, row by row."""
    y = wide(outputs[0])
    assert y.shape == truths[0].shape, f"shape {tuple(y.shape)}, expected {tuple(truths[0].shape)}"
    distances = []
    for truth in truths:
        lengths = truth.norm(dim=1)
        off = (y - truth).norm(dim=1) / lengths.clamp(min=1e-30)
        distances.append(off.nan_to_num(nan=torch.inf).max().item() if len(off) else 0.0)
    assert min(distances) <= ROUNDED_DISTANCE, (
        f"rows are up to {distances[0]:.1e} from exact and {distances[1]:.1e} from rounded ones, "
        f"relative to their lengths; allowed {ROUNDED_DISTANCE}"
    )


def _matrix(
    scheme: str, make: Maker, rows: int, columns: int, *, signed: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and what they mean in float64; of the size that a layer's weights have."""
    if scheme == "mxfp4":
        pairs = make.integers(0, 256, rows, columns // 2, dtype=torch.uint8)
        pairs = pairs if signed else pairs & 0x77
        scales = make.integers(122, 124, rows, columns // GROUP, dtype=torch.uint8)
        halves = torch.stack((pairs % 16, pairs // 16), dim=2).flatten(1).cpu().long()
        numbers = torch.tensor(FP4, dtype=torch.float64)[halves % 8]
        factors = 2.0 ** (scales.cpu().double() - 127)
        signs = torch.where(halves < 8, 1.0, -1.0)
        return pairs, scales, signs * numbers * factors.repeat_interleave(GROUP, dim=1)
    side = BLOCKS[scheme]
    codes = make.normal(rows, columns, scale=32.0, dtype=torch.float32).clamp(-448, 448)
    codes = (codes if signed else codes.abs()).to(torch.float8_e4m3fn)
    grid = -(-rows // side), -(-columns // side)
    # Powers of two, so that rounding to the dtype of x changes no weight.
    scales = 2.0 ** make.integers(-9, -7, *grid, dtype=torch.int32).float()
    factors = wide(scales).repeat_interleave(side, dim=0).repeat_interleave(side, dim=1)
    return codes, scales, wide(codes.float()) * factors[:rows, :columns]


OPS = {
    "gemm.coded": OpCases(gemm_cases, rows=("x",)),
    "moe.coded": OpCases(experts_cases, rows=("x", "ids", "weights")),
}
