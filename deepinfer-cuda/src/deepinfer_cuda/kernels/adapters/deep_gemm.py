"""`gemm.scaled` and, where rows may be rounded, `gemm.coded` by DeepGEMM.

Written against `deep_gemm.fp8_gemm_nt` of 2.x on compute capability 9.0, which takes scales as
float32: one for 128 columns of a row, one for a square block of the weight.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, dtype

from deepinfer_cuda.kernels.quant import act

SCHEME = "fp8_block128"


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`, for `fp8_block128`.

    Raises:
        ValueError: another scheme.
    """
    if scheme != SCHEME:
        raise ValueError(f"DeepGEMM multiplies {SCHEME}, not {scheme}")
    out = torch.empty(len(q), len(weight), dtype=torch.bfloat16, device=q.device)
    if out.numel():
        library: Any = import_module("deep_gemm")
        library.fp8_gemm_nt((q, scales), (weight, weight_scales), out)
    return out.to(out_dtype)


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`, with `rounded_rows`."""
    q, x_scales = act(x, SCHEME)
    y = scaled(q, x_scales, codes, scales, scheme, x.dtype)
    return y if bias is None else y + bias
