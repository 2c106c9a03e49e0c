"""Cases of products with weights that stay codes with scales."""

from __future__ import annotations

from collections.abc import Sequence
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


def gemm_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for scheme in SCHEMES:
        for out_size, in_size in ((256, 384), (130, 192)):
            out_size = sizes.pick("out_features", out_size)
            in_size = sizes.pick("in_features", in_size)
            shape = {"in_features": in_size, "out_features": out_size}
            for features in (frozenset[str](), frozenset({"bias"})):
                name = "-".join((scheme, f"{in_size}to{out_size}", *features))
                build = partial(_gemm, scheme, out_size, in_size, "bias" in features)
                cases.append(Case(name, build, features, shape, scheme=scheme))
    return list({case.name: case for case in cases}.values())


def experts_cases(sizes: Sizes) -> Sequence[Case]:
    shape = {
        "hidden_size": sizes.pick("hidden_size", 64),
        "intermediate_size": sizes.pick("intermediate_size", 64),
        "num_experts": sizes.pick("num_experts", 4),
        "top_k": sizes.pick("top_k", 2),
    }
    variants = (frozenset[str](), frozenset({"limit"}), frozenset({"expert_map"}))
    return [
        Case(
            "-".join((scheme, *features)),
            partial(_experts, scheme, shape, features),
            features,
            shape,
            scheme=scheme,
        )
        for scheme in SCHEMES
        for features in variants
    ]


def _gemm(
    scheme: str, out_size: int, in_size: int, biased: bool, make: Maker, num_tokens: int
) -> Call:
    x = make.rows(num_tokens, in_size)
    codes, scales, weight = _matrix(scheme, make, out_size, in_size)
    bias = make.normal(out_size) if biased else None
    y = wide(x) @ weight.T
    if bias is not None:
        y = y + wide(bias)
    kwargs = {"x": x, "codes": codes, "scales": scales, "scheme": scheme, "bias": bias}
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
    y = torch.zeros(num_tokens, hidden, dtype=torch.float64)
    for t in range(num_tokens):
        for k in range(top_k):
            if (expert := local[int(ids[t, k])]) >= 0:
                gate, linear = (up[expert][2] @ wide(x[t])).chunk(2)
                y[t] += down[expert][2] @ gated(gate, linear, limit) * float(weights[t, k])
    return Call(kwargs, [y])


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
