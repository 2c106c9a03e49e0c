"""References of the activation ops."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.act.silu_mul`."""
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate).mul_(up)
