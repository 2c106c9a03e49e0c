"""Activations."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.act.silu_mul`."""
    if not x.numel():
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    if limit is not None:
        gate, up = x.chunk(2, dim=-1)
        x = torch.cat([gate.clamp(max=limit), up.clamp(-limit, limit)], dim=-1)
    y: Tensor = torch.ops.npu.npu_swiglu(x.contiguous(), -1)
    return y
