"""Quantisation and products of what it gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.emulation import play
from deepinfer_ascend.emulation.registry import emulates, require

DTYPES = {1: torch.int8, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16}
"""By torch's own numbers, as schemas pass them."""


@emulates("npu_dynamic_quant")
def dynamic_quant(input: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    require(not others, f"what is emulated, not {sorted(others)}")
    require(input.is_contiguous() and input.dtype in play.halves(), "contiguous rows in 16 bits")
    wide = input.float()
    scales = wide.abs().amax(-1) / 127.0
    q = (wide / scales.unsqueeze(-1)).nan_to_num().round().clamp(-128, 127)
    return q.to(torch.int8), scales


@emulates("npu_quant_matmul")
def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    output_dtype: int | None = None,
    **others: Any,
) -> Tensor:
    require(not others, f"what is emulated, not {sorted(others)}")
    require(x1.dtype == x2.dtype == torch.int8, "rows and weights of int8")
    require(pertoken_scale is not None and scale.dtype == torch.float32, "scales in float32")
    require(max(x1.shape[-1], x2.shape[-1]) <= 65535, "at most 65535 columns")
    assert pertoken_scale is not None and output_dtype is not None
    sums = (x1.double() @ x2.double()).float()
    return (sums * scale * pertoken_scale.unsqueeze(1)).to(DTYPES[output_dtype])
