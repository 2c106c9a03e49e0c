"""Cases of the matrix products and of the quantisation that feeds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide

SCHEMES: dict[str, tuple[torch.dtype, float, int | None]] = {
    "int8_token": (torch.int8, 127.0, None),
    "fp8_token": (torch.float8_e4m3fn, 448.0, None),
    "fp8_block128": (torch.float8_e4m3fn, 448.0, 128),
    "fp8_block128_ue8m0": (torch.float8_e4m3fn, 448.0, 128),
    "fp8_block32_ue8m0": (torch.float8_e4m3fn, 448.0, 32),
}
"""Dtype, largest number, and elements that share a scale; None: the row."""


def dense_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for out_size, in_size in ((96, 64), (33, 57), (576, 1536), (40, 2048)):
        out_size = sizes.pick("out_features", out_size)
        in_size = sizes.pick("in_features", in_size)
        shape = {"in_features": in_size, "out_features": out_size}
        name = f"{in_size}to{out_size}"
        cases.append(Case(name, partial(_dense, out_size, in_size, False), sizes=shape))
        biased = partial(_dense, out_size, in_size, True)
        cases.append(Case(f"{name}-bias", biased, frozenset({"bias"}), shape))
    return list({case.name: case for case in cases}.values())


def gated_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for half, in_size in ((40, 57), (72, 512)):
        shape = {
            "in_features": sizes.pick("in_features", in_size),
            "intermediate_size": sizes.pick("intermediate_size", half),
        }
        name = "{in_features}to{intermediate_size}".format(**shape)
        for feature in ("plain", "bias", "limit"):
            wanted = frozenset({feature} - {"plain"})
            build = partial(_gated, shape, feature)
            cases.append(Case(f"{name}-{feature}", build, wanted, shape))
    return list({case.name: case for case in cases}.values())


def batched_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for groups, out_size, in_size in ((4, 48, 24), (3, 20, 33)):
        shape = {
            "num_groups": sizes.pick("num_groups", groups),
            "out_features": sizes.pick("out_features", out_size),
            "in_features": sizes.pick("in_features", in_size),
        }
        name = "x".join(str(size) for size in shape.values())
        for is_turned in (False, True):
            build = partial(_batched, shape, is_turned)
            cases.append(Case(f"{name}-turned" if is_turned else name, build, sizes=shape))
    return cases


def quant_cases(sizes: Sizes) -> Sequence[Case]:
    return [
        Case(
            f"{scheme}-{size}",
            partial(_quantize, scheme, size),
            scheme=scheme,
            sizes={"hidden_size": size},
        )
        for scheme in SCHEMES
        for size in sizes.several("hidden_size", 256, 200, 64)
    ]


def scaled_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for scheme in SCHEMES:
        for out_size, in_size in ((256, 384), (130, 200)):
            out_size = sizes.pick("out_features", out_size)
            in_size = sizes.pick("in_features", in_size)
            shape = {"in_features": in_size, "out_features": out_size}
            build = partial(_scaled, scheme, out_size, in_size)
            name = f"{scheme}-{in_size}to{out_size}"
            cases.append(Case(name, build, scheme=scheme, sizes=shape))
    return list({case.name: case for case in cases}.values())


def _dense(out_size: int, in_size: int, biased: bool, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, in_size)
    weight = make.normal(out_size, in_size, scale=in_size**-0.5)
    bias = make.normal(out_size) if biased else None
    y = wide(x) @ wide(weight).T
    if bias is not None:
        y = y + wide(bias)
    return Call({"x": x, "weight": weight, "bias": bias}, [y])


def _gated(shape: Mapping[str, int], feature: str, make: Maker, num_tokens: int) -> Call:
    size, half = shape["in_features"], shape["intermediate_size"]
    x = make.rows(num_tokens, size)
    weight = make.normal(2 * half, size, scale=size**-0.5)
    bias = make.normal(2 * half) if feature == "bias" else None
    limit = 0.5 if feature == "limit" else None
    both = wide(x) @ wide(weight).T
    if bias is not None:
        both = both + wide(bias)
    gate, up = both.chunk(2, dim=1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    kwargs = {"x": x, "weight": weight, "bias": bias, "limit": limit}
    return Call(kwargs, [gate / (1 + torch.exp(-gate)) * up])


def _batched(shape: Mapping[str, int], is_turned: bool, make: Maker, num_tokens: int) -> Call:
    groups, out_size, in_size = shape.values()
    x = make.rows(num_tokens, groups, in_size)
    if is_turned:
        wider = make.normal(groups, in_size + 2, out_size, scale=in_size**-0.5)
        weight = wider[:, 1:-1].transpose(1, 2)
    else:
        weight = make.normal(groups, out_size, in_size, scale=in_size**-0.5)
    return Call({"x": x, "weight": weight}, [torch.einsum("tgk,gnk->tgn", wide(x), wide(weight))])


def _quantize(scheme: str, size: int, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, size, scale=3.0)
    if num_tokens > 1:
        x[1] = 0
    dtype, qmax, group = SCHEMES[scheme]
    grouped = wide(x) if group is None else _grouped(wide(x), group)
    amax = grouped.abs().amax(dim=-1) if grouped.numel() else grouped.sum(dim=-1)
    if scheme.endswith("ue8m0"):
        scales = torch.exp2(torch.ceil(torch.log2(amax.clamp(min=1e-4) / qmax)))
    else:
        scales = torch.where(amax > 0, amax / qmax, 1.0)

    def check(outputs: Sequence[Tensor]) -> None:
        q, found = outputs
        assert q.dtype == dtype, f"q has dtype {q.dtype}"
        assert q.shape == x.shape, f"q has shape {tuple(q.shape)}"
        assert found.dtype == torch.float32, f"scales have dtype {found.dtype}"
        assert found.shape == scales.shape, f"scales have shape {tuple(found.shape)}"
        error = (wide(found) / scales - 1).abs()
        assert (error <= 1e-6).all(), f"a scale is {error.max().item():.1e} off"
        _check_rounding(wide(x), wide(q.float()), _spread(wide(found), size, group), scheme)

    return Call({"x": x, "scheme": scheme}, [], check=check)


def _check_rounding(x: Tensor, q: Tensor, scales: Tensor, scheme: str) -> None:
    """Each value is near, and the errors do not lean to one side."""
    error = q * scales - x
    # Half a step: of one for integers, of 2^-3 of the value (or the smallest step) for e4m3.
    step = torch.ones_like(q) if scheme == "int8_token" else (q.abs() * 2**-3).clamp(min=2**-9)
    half = 0.5 * step * scales * 1.0001
    assert (error.abs() <= half).all(), (
        f"a value is {(error.abs() / half).max().item():.3f} half steps off"
    )
    if x.shape[0] > 10:
        lean = (error * x.sign()).mean().abs().item()
        noise = error.std().item() / math.sqrt(error.numel())
        assert lean <= 6 * noise, f"rounding leans to one side: {lean:.2e}, noise {noise:.2e}"


def _scaled(scheme: str, out_size: int, in_size: int, make: Maker, num_tokens: int) -> Call:
    dtype, qmax, group = SCHEMES[scheme]
    q = make.normal(num_tokens, in_size, scale=qmax / 4, dtype=torch.float32)
    weight = make.normal(out_size, in_size, scale=qmax / 4, dtype=torch.float32)
    q, weight = (t.clamp(-qmax, qmax).to(dtype) for t in (q, weight))
    if group is not None:
        scales = _positive(make, num_tokens, -(-in_size // group))
        weight_scales = _positive(make, -(-out_size // group), -(-in_size // group))
        tall = wide(weight_scales).repeat_interleave(group, dim=0)[:out_size]
        factor = _spread(tall, in_size, group)
    else:
        scales, weight_scales = _positive(make, num_tokens), _positive(make, out_size)
        factor = wide(weight_scales).unsqueeze(1)
    rows = wide(q.float()) * _spread(wide(scales), in_size, group)
    kwargs = {
        "q": q,
        "scales": scales,
        "weight": weight,
        "weight_scales": weight_scales,
        "scheme": scheme,
        "out_dtype": make.dtype,
    }
    return Call(kwargs, [rows @ (wide(weight.float()) * factor).T])


def _positive(make: Maker, *shape: int) -> Tensor:
    return make.normal(*shape, dtype=torch.float32).abs() * 1e-3 + 1e-4


def _grouped(x: Tensor, group: int) -> Tensor:
    missing = -x.shape[1] % group
    return torch.nn.functional.pad(x, (0, missing)).view(x.shape[0], -(-x.shape[1] // group), group)


def _spread(scales: Tensor, size: int, group: int | None) -> Tensor:
    """One scale for each element: of rows, or of blocks of a row."""
    if group is None:
        return scales.unsqueeze(1)
    return scales.repeat_interleave(group, dim=1)[:, :size]


OPS = {
    "gemm.dense": OpCases(dense_cases, rows=("x",)),
    "gemm.gated": OpCases(gated_cases, rows=("x",)),
    "gemm.batched": OpCases(batched_cases, rows=("x",)),
    "quant.act": OpCases(quant_cases, rows=("x",)),
    "gemm.scaled": OpCases(scaled_cases, rows=("q", "scales")),
}
