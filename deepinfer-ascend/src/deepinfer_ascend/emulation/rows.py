"""Norms, activations, formats. Sums in float32 and one rounding, as the vector units do."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer_ascend.emulation.registry import emulates, require


@emulates("npu_rms_norm")
def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    require(input.is_contiguous() and input.numel() > 0, "contiguous rows, at least one")
    require(gamma.shape == input.shape[-gamma.dim() :], "a gamma of the last dimensions")
    wide = input.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(input.dtype), rstd


@emulates("npu_add_rms_norm")
def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    require(x1.shape == x2.shape and x1.dtype == x2.dtype, "two addends that are alike")
    total = (x1.float() + x2.float()).to(x1.dtype)
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, rstd, total


@emulates("npu_swiglu")
def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    require(input.numel() > 0 and input.shape[dim] % 2 == 0, "an even size, and some numbers")
    gate, up = input.float().chunk(2, dim=dim)
    return (F.silu(gate) * up).to(input.dtype)


@emulates("npu_format_cast")
def format_cast(
    input: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Formats are a matter of storage that a CPU does not have."""
    del acl_format, customize_dtype, input_dtype
    require(input.is_contiguous(), "a contiguous tensor")
    return input.clone()
