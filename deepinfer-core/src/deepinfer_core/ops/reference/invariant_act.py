"""The activation ops, with bits that do not depend on where in a batch a row lies."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.lanes import elementwise


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.act.silu_mul`."""
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return elementwise(lambda piece: F.silu(piece, inplace=True), gate).mul_(up)
