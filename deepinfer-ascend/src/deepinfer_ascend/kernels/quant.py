"""Quantised rows, and products of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
BLOCK = 128
LEAST = 1e-4
"""Of the largest number of a group whose scale is a power of two, as DeepSeek-V4 rounds."""
UP = 1
"""Scales are rounded up to powers of two, so that no code is cut off."""
EXPONENT_BIAS = 127


class Scheme(NamedTuple):
    """How rows become codes."""

    dtype: torch.dtype
    group: int | None
    """Numbers that share a scale; None: the row."""
    has_powers: bool = False
    """Scales are powers of two."""

    def num_scales(self, width: int) -> tuple[int, ...]:
        return () if self.group is None else (-(-width // self.group),)


SCHEMES = {
    "int8_token": Scheme(torch.int8, None),
    "fp8_token": Scheme(E4M3, None),
    "fp8_block128": Scheme(E4M3, BLOCK),
    "fp8_block128_ue8m0": Scheme(E4M3, BLOCK, has_powers=True),
    "fp8_block32_ue8m0": Scheme(E4M3, 32, has_powers=True),
}


def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.quant.act`."""
    chosen = SCHEMES[scheme]
    if not x.numel():
        shape = (x.shape[0], *chosen.num_scales(x.shape[1]))
        return x.new_empty(x.shape, dtype=chosen.dtype), x.new_ones(shape, dtype=torch.float32)
    x = x.contiguous()
    if chosen.group is not None and chosen.has_powers:
        q, exponents = torch.ops.npu.npu_dynamic_mx_quant(
            x, dst_type=E4M3, block_size=chosen.group, scale_alg=UP, max_low_bound=LEAST
        )
        # LAYOUT: pairs of exponents, filled up to a whole pair.
        exponents = exponents.view(torch.uint8).flatten(1)[:, : -(-x.shape[1] // chosen.group)]
        return q, torch.exp2(exponents.float() - EXPONENT_BIAS)
    if chosen.group is not None:
        return _without_zeros(
            *torch.ops.npu.npu_dynamic_block_quant(
                x, dst_type=E4M3, row_block_size=1, col_block_size=BLOCK
            )
        )
    return _without_zeros(*torch.ops.npu.npu_dynamic_quant(x, dst_type=chosen.dtype))


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`."""
    if not q.numel():
        return q.new_empty(q.shape[0], weight.shape[0], dtype=out_dtype)
    is_blocked = SCHEMES[scheme].group is not None
    y: Tensor = torch.ops.npu.npu_quant_matmul(
        q.contiguous(),
        weight.transpose(0, 1),
        weight_scales.transpose(0, 1) if is_blocked else weight_scales,
        pertoken_scale=scales,
        output_dtype=out_dtype,
        group_sizes=[1, BLOCK, BLOCK] if is_blocked else None,
    )
    return y


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`, for rows that may be rounded as well."""
    y = scaled(*act(x, scheme), codes, scales, scheme, x.dtype)
    return y if bias is None else y + bias


def _without_zeros(q: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of zeros alone: zeros with a scale of one, whatever the operator makes of them."""
    is_zero = scales == 0
    width = q.shape[1]
    if scales.dim() == 1:
        hidden = is_zero.unsqueeze(1)
    else:
        hidden = is_zero.repeat_interleave(BLOCK, dim=1)[:, :width]
    # Eight bits as bytes: not every operator knows the codes' own type.
    plain = q.view(torch.int8).masked_fill(hidden, 0).view(q.dtype)
    return plain, scales.masked_fill(is_zero, 1.0)
