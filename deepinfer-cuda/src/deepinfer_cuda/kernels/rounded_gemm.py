"""Products with coded weights whose rows may be rounded: many rows are, few are not worth it.

cuBLAS multiplies where it can, at up to twice the speed of our kernel in Triton.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import triton
from torch import Tensor

from deepinfer_cuda.heuristics_coded import MIN_ROUNDED_ROWS
from deepinfer_cuda.kernels import coded_gemm, scaled_gemm
from deepinfer_cuda.kernels.quant import SCHEMES, round_groups

logger = logging.getLogger(__name__)

ROUNDING = SCHEMES["fp8_block128"]
ALIGNED_ROWS = 128
"""To a multiple of which rows are filled up for cuBLAS, whose tiles have as many."""
OLDEST_CUBLAS = (12, 9)
"""Version of CUDA whose cuBLAS knows scales of blocks."""
_refused: set[torch.Size] = set()
"""Shapes of weights for which cuBLAS turned out to have no algorithm."""


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`, under the permission `rounded_rows`."""
    num_rows, size = x.shape
    if scheme != "fp8_block128" or num_rows < MIN_ROUNDED_ROWS:
        return coded_gemm.coded(x, codes, scales, scheme, bias)
    if bias is None and _suits_cublas(x, codes, scales):
        y = _multiply_with_cublas(x, codes, scales)
        if y is not None:
            return y
    # Scales of one group lie side by side, as the products read them.
    num_groups = triton.cdiv(size, 128)
    row_scales = torch.empty((num_groups, num_rows), dtype=torch.float32, device=x.device).t()
    q = round_groups(x, ROUNDING, row_scales)
    y = torch.empty((num_rows, codes.shape[0]), dtype=x.dtype, device=x.device)
    scaled_gemm.multiply(q, row_scales, codes, scales, bias, y, ROUNDING.group)
    return y


def _suits_cublas(x: Tensor, codes: Tensor, scales: Tensor) -> bool:
    """Whether rows of codes, of results and of scales lie as cuBLAS wants them."""
    (num_outputs, size), is_dense = codes.shape, codes.is_contiguous() and scales.is_contiguous()
    return (
        x.dtype == torch.bfloat16
        and is_dense
        and size % 512 == 0
        and num_outputs % 16 == 0
        and codes.shape not in _refused
        and _has_cublas(x.device)
    )


@cache
def _has_cublas(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    version = tuple(int(part) for part in torch.version.cuda.split(".")[:2])
    # HW(sm90): these scales are for Hopper alone.
    return torch.cuda.get_device_capability(device) == (9, 0) and version >= OLDEST_CUBLAS


def _multiply_with_cublas(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor | None:
    """None where cuBLAS has no algorithm, which it does not say beforehand."""
    num_rows, size = x.shape
    # Rows that fill up are undefined, and so are theirs of the result.
    all_rows = triton.cdiv(num_rows, ALIGNED_ROWS) * ALIGNED_ROWS
    q = torch.empty((all_rows, size), dtype=ROUNDING.dtype, device=x.device)
    row_scales = torch.empty((size // 128, all_rows), dtype=torch.float32, device=x.device).t()
    round_groups(x, ROUNDING, row_scales[:num_rows], q)
    try:
        y = torch._scaled_mm(q, codes.t(), row_scales, scales.t(), out_dtype=x.dtype)
    except RuntimeError as error:
        if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
            raise
        _refused.add(codes.shape)
        logger.warning(
            "cuBLAS has no algorithm for %s codes; Triton multiplies", tuple(codes.shape)
        )
        return None
    return y[:num_rows]
