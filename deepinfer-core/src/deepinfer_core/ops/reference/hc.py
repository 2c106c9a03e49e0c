"""References of hyper-connections, in float32. A token's bits do not depend on its batch."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.reference.invariant_gemm import dense
from deepinfer_core.ops.reference.lanes import elementwise

PIECE = 8192
"""Numbers of a row that are summed at once."""


def pre(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    eps: float,
    num_iters: int,
    previous: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """See `deepinfer_core.ops.specs.hc.pre`."""
    n = streams.shape[1]
    z = _project(streams, fn, norm_eps)
    weights = _sigmoid(z[:, :n] * scale[0] + base[:n]) + eps
    post_weights = 2 * _sigmoid(z[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    raw = (z[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n)
    exps = elementwise(torch.exp_, raw - raw.amax(dim=2, keepdim=True))
    mix = exps / _sum(exps, 2) + eps
    mix = mix / (_sum(mix, 1) + eps)
    for _ in range(num_iters - 1):
        mix = mix / (_sum(mix, 2) + eps)
        mix = mix / (_sum(mix, 1) + eps)
    if previous is None:
        return collapse(streams, weights), post_weights, mix
    return collapse(streams, previous), post_weights, mix, weights


def post(y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.post`."""
    out = y.float().unsqueeze(1) * post.unsqueeze(2)
    wide = streams.float()
    for j in range(streams.shape[1]):
        out = out + mix[:, j].unsqueeze(2) * wide[:, j : j + 1]
    return out.to(streams.dtype)


def head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, eps: float
) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.head`."""
    return collapse(streams, _sigmoid(_project(streams, fn, norm_eps) * scale + base) + eps)


def _project(streams: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    flat = streams.flatten(1).float()
    # In pieces, since torch shares the sum of one long row out between threads.
    pieces = [piece.square().sum(dim=1, keepdim=True) for piece in torch.split(flat, PIECE, dim=1)]
    mean = _sum(torch.stack(pieces), 0).squeeze(0) / flat.shape[1]
    inverse_rms = torch.rsqrt(mean + norm_eps)
    return dense(flat, fn) * inverse_rms


def collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.collapse`."""
    total = weights[:, :1] * streams[:, 0].float()
    for i in range(1, streams.shape[1]):
        total = total + weights[:, i : i + 1] * streams[:, i].float()
    return total.to(streams.dtype)


def _sigmoid(x: Tensor) -> Tensor:
    return elementwise(torch.sigmoid_, x)


def _sum(x: Tensor, dim: int) -> Tensor:
    """In order, whatever the shape."""
    first, *rest = x.unbind(dim)
    for part in rest:
        first = first + part
    return first.unsqueeze(dim)
