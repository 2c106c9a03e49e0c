"""Quantised rows, and products of them."""

from __future__ import annotations

import torch
from torch import Tensor


def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.quant.act`, for rows of int8."""
    del scheme
    if not x.numel():
        return x.new_empty(x.shape, dtype=torch.int8), x.new_ones(x.shape[0], dtype=torch.float32)
    q, scales = torch.ops.npu.npu_dynamic_quant(x.contiguous())
    is_zero = scales == 0
    return q.masked_fill(is_zero.unsqueeze(1), 0), scales.masked_fill(is_zero, 1.0)


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`, for rows of int8."""
    del scheme
    if not q.numel():
        return q.new_empty(q.shape[0], weight.shape[0], dtype=out_dtype)
    y: Tensor = torch.ops.npu.npu_quant_matmul(
        q.contiguous(),
        weight.transpose(0, 1),
        weight_scales,
        pertoken_scale=scales,
        output_dtype=out_dtype,
    )
    return y
