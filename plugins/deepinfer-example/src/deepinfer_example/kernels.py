"""The kernels, with the signatures of the op specs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    if residual is not None:
        x = x + residual
    wide = x.float()
    y = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return (y if weight is None else y * weight), (x if residual is not None else None)


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate) * up
