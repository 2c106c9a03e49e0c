"""Norms of rows."""

from __future__ import annotations

import torch
from torch import Tensor


def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.rms`."""
    gamma = x.new_ones(x.shape[-1]) if weight is None else weight
    if not x.numel():  # the operators take no empty tensors
        return torch.empty_like(x), None if residual is None else torch.empty_like(x)
    x = x.contiguous()
    if residual is None:
        y, _ = torch.ops.npu.npu_rms_norm(x, gamma, eps)
        return y, None
    y, _, total = torch.ops.npu.npu_add_rms_norm(x, residual.contiguous(), gamma, eps)
    return y, total
