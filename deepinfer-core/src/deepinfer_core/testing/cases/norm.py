"""Cases of the normalisation ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, rounded, wide

EPS = 1e-5


def rms_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for size in sizes.several("hidden_size", 64, 33, 576):
        for weighted in (True, False):
            name = f"hidden{size}{'' if weighted else '-unweighted'}"
            plain = partial(_rms, size, weighted, False)
            added = partial(_rms, size, weighted, True)
            shape = {"hidden_size": size}
            cases.append(Case(name, plain, sizes=shape))
            cases.append(Case(f"{name}-residual", added, frozenset({"residual"}), shape))
    return cases


def layer_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for size in sizes.several("hidden_size", 64, 33, 576):
        for biased in (False, True):
            for has_residual in (False, True):
                features = {"bias"} if biased else set()
                features |= {"residual"} if has_residual else set()
                name = "-".join([f"hidden{size}", *sorted(features)])
                build = partial(_layer, size, biased, has_residual)
                cases.append(Case(name, build, frozenset(features), {"hidden_size": size}))
    return cases


def _rms(size: int, weighted: bool, has_residual: bool, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, size)
    weight = make.normal(size) if weighted else None
    residual = make.rows(num_tokens, size, scale=2.0) if has_residual else None
    total = _add(x, residual)
    mean = total.square().mean(dim=-1, keepdim=True)
    y = total / (mean + EPS).sqrt()
    if weight is not None:
        y = y * wide(weight)
    kwargs = {"x": x, "weight": weight, "eps": EPS, "residual": residual}
    return Call(kwargs, [y] if residual is None else [y, total])


def _layer(size: int, biased: bool, has_residual: bool, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, size)
    weight, bias = make.normal(size), make.normal(size) if biased else None
    residual = make.rows(num_tokens, size, scale=2.0) if has_residual else None
    total = _add(x, residual)
    centered = total - total.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    y = centered / (variance + EPS).sqrt() * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    kwargs = {"x": x, "weight": weight, "bias": bias, "eps": EPS, "residual": residual}
    return Call(kwargs, [y] if residual is None else [y, total])


def _add(x: Tensor, residual: Tensor | None) -> Tensor:
    """The sum as the op must round it before it goes on."""
    return wide(x) if residual is None else rounded(wide(x) + wide(residual), x.dtype)


OPS = {
    "norm.rms": OpCases(rms_cases, rows=("x", "residual")),
    "norm.layer": OpCases(layer_cases, rows=("x", "residual")),
}
