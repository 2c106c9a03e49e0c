"""Products with coded weights whose rows may be rounded: many rows are, few are not worth it."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepinfer_cuda.heuristics_coded import MIN_ROUNDED_ROWS
from deepinfer_cuda.kernels import coded_gemm, scaled_gemm
from deepinfer_cuda.kernels.quant import SCHEMES, round_groups

ROUNDING = SCHEMES["fp8_block128"]


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`, under the permission `rounded_rows`."""
    num_rows, size = x.shape
    if scheme != "fp8_block128" or num_rows < MIN_ROUNDED_ROWS:
        return coded_gemm.coded(x, codes, scales, scheme, bias)
    # Scales of one group lie side by side, as the products read them.
    num_groups = triton.cdiv(size, 128)
    row_scales = torch.empty((num_groups, num_rows), dtype=torch.float32, device=x.device).t()
    q = round_groups(x, ROUNDING, row_scales)
    y = torch.empty((num_rows, codes.shape[0]), dtype=x.dtype, device=x.device)
    scaled_gemm.multiply(q, row_scales, codes, scales, bias, y, ROUNDING.group)
    return y
