"""Cases of hyper-connections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide

NORM_EPS, EPS, NUM_ITERS = 1e-6, 1e-6, 20


def _cases(build: str, sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_streams, hidden_size in ((4, 64), (3, 20)):
        n, size = sizes.pick("hc_mult", num_streams), sizes.pick("hidden_size", hidden_size)
        shape = {"hc_mult": n, "hidden_size": size}
        cases.append(Case(f"{n}x{size}", partial(_BUILDERS[build], n, size), sizes=shape))
    return cases


def _coefficients(count: int, n: int, size: int, num_scales: int, make: Maker) -> dict[str, Tensor]:
    return {
        "fn": make.normal(count, n * size, scale=(n * size) ** -0.5, dtype=torch.float32),
        "base": make.normal(count, dtype=torch.float32),
        "scale": make.normal(num_scales, dtype=torch.float32),
    }


def _project(streams: Tensor, kwargs: dict[str, Tensor]) -> Tensor:
    flat = wide(streams).flatten(1)
    norm = (flat.square().mean(dim=1, keepdim=True) + NORM_EPS).sqrt()
    return flat / norm @ wide(kwargs["fn"]).T


def _pre_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for case in _cases("pre", sizes):
        n, size = case.sizes["hc_mult"], case.sizes["hidden_size"]
        build = partial(_pre, n, size, is_delayed=True)
        delayed = Case(f"{case.name}-delayed", build, frozenset({"delayed"}), case.sizes)
        cases += [case, delayed]
    return cases


def _pre(n: int, size: int, make: Maker, num_tokens: int, is_delayed: bool = False) -> Call:
    streams = make.normal(num_tokens, n, size)
    kwargs = _coefficients(2 * n + n * n, n, size, 3, make)
    z, base, scale = _project(streams, kwargs), wide(kwargs["base"]), wide(kwargs["scale"])
    weights = (z[:, :n] * scale[0] + base[:n]).sigmoid() + EPS
    post = 2 * (z[:, n : 2 * n] * scale[1] + base[n : 2 * n]).sigmoid()
    mix = (z[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n).softmax(dim=2) + EPS
    for turn in range(2 * NUM_ITERS - 1):
        mix = mix / (mix.sum(dim=1 if turn % 2 == 0 else 2, keepdim=True) + EPS)
    constants = {"norm_eps": NORM_EPS, "eps": EPS, "num_iters": NUM_ITERS}
    inputs = {"streams": streams, **kwargs, **constants}
    if not is_delayed:
        return Call(inputs, [_collapsed(streams, weights), post, mix])
    previous = make.normal(num_tokens, n, dtype=torch.float32)
    u = _collapsed(streams, previous)
    return Call({**inputs, "previous": previous}, [u, post, mix, weights])


def _collapsed(streams: Tensor, weights: Tensor) -> Tensor:
    return (wide(weights).unsqueeze(2) * wide(streams)).sum(dim=1)


def _post(n: int, size: int, make: Maker, num_tokens: int) -> Call:
    streams, y = make.normal(num_tokens, n, size), make.rows(num_tokens, size)
    post = make.normal(num_tokens, n, dtype=torch.float32)
    mix = make.normal(num_tokens, n, n, dtype=torch.float32)
    out = wide(post).unsqueeze(2) * wide(y).unsqueeze(1)
    out = out + torch.einsum("tjk,tjd->tkd", wide(mix), wide(streams))
    return Call({"y": y, "streams": streams, "post": post, "mix": mix}, [out])


def _head(n: int, size: int, make: Maker, num_tokens: int) -> Call:
    streams = make.normal(num_tokens, n, size)
    kwargs = _coefficients(n, n, size, 1, make)
    z = _project(streams, kwargs)
    weights = (z * wide(kwargs["scale"]) + wide(kwargs["base"])).sigmoid() + EPS
    u = _collapsed(streams, weights)
    return Call({"streams": streams, **kwargs, "norm_eps": NORM_EPS, "eps": EPS}, [u])


def _collapse(n: int, size: int, make: Maker, num_tokens: int) -> Call:
    streams = make.normal(num_tokens, n, size)
    weights = make.normal(num_tokens, n, dtype=torch.float32)
    return Call({"streams": streams, "weights": weights}, [_collapsed(streams, weights)])


_BUILDERS = {"pre": _pre, "post": _post, "head": _head, "collapse": _collapse}

OPS = {
    "hc.pre": OpCases(_pre_cases, rows=("streams", "previous")),
    "hc.post": OpCases(partial(_cases, "post"), rows=("y", "streams", "post", "mix")),
    "hc.head": OpCases(partial(_cases, "head"), rows=("streams",)),
    "hc.collapse": OpCases(partial(_cases, "collapse"), rows=("streams", "weights")),
}
