"""Norms, activations, formats. Sums in float32 and one rounding, as the vector units do."""

from __future__ import annotations

from typing import Any

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


@emulates("npu_rotary_mul")
def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    require(rotate is None and input.dim() == 4, "four dimensions")
    require(input.dtype == r1.dtype == r2.dtype, "factors of the dtype of the rows")
    require(input.shape[-1] < 896 and input.shape[0] * input.shape[2] < 1000, "not too many heads")
    require(r1.shape == (1, input.shape[1], 1, input.shape[3]), "factors [1, S, 1, D]")
    if rotary_mode == "half":
        first, second = input.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
    else:
        pairs = input.view(*input.shape[:-1], -1, 2)
        turned = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return r1 * input + r2 * turned


@emulates("npu_scatter_pa_kv_cache")
def scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
    **others: Any,
) -> None:
    require(not others and cache_mode == "Norm", "what is emulated")
    require(key.dtype in (torch.float16, torch.bfloat16, torch.int8), "16 bits or signed bytes")
    require(key_cache.is_contiguous() and value_cache.is_contiguous(), "contiguous caches")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        scatter_nd_update_(cache.view(-1, *rows.shape[1:]), slot_mapping.unsqueeze(1), rows)


@emulates("npu_scatter_nd_update_")
def scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    require(input.is_contiguous() and input.dtype == updates.dtype, "contiguous rows of one dtype")
    in_range = (indices >= 0) & (indices < input.shape[0])
    require(bool(in_range.all()), "indices within the rows")
    # Where an index occurs twice, which of its rows stays is open; ours are equal then.
    input[indices.squeeze(1).long()] = updates
    return input
