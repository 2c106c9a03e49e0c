"""Quantisation and products of what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_ascend.emulation import play
from deepinfer_ascend.emulation.registry import emulates, require

E4M3 = torch.float8_e4m3fn
DTYPES = {1: torch.int8, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16, 24: E4M3}
"""By torch's own numbers, as schemas pass them."""
LARGEST = {torch.int8: 127.0, E4M3: 448.0}
BLOCK = 128


@emulates("npu_dynamic_quant")
def dynamic_quant(
    input: Tensor, *, dst_type: int | None = None, **others: Any
) -> tuple[Tensor, Tensor]:
    require(not others, f"what is emulated, not {sorted(others)}")
    require(input.is_contiguous() and input.dtype in play.halves(), "contiguous rows in 16 bits")
    dtype = torch.int8 if dst_type is None else DTYPES[dst_type]
    require(dtype == torch.int8 or "fp8" in play.soc().features, "a 950 for fp8")
    wide = input.float()
    scales = wide.abs().amax(-1) / LARGEST[dtype]
    return as_codes(wide / scales.unsqueeze(-1), dtype), scales


@emulates("npu_dynamic_block_quant")
def dynamic_block_quant(
    x: Tensor,
    *,
    dst_type: int = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    require(not others and row_block_size == 1, f"what is emulated, not {sorted(others)}")
    require(x.dtype in play.halves() and x.numel() > 0, "rows in 16 bits")
    dtype = DTYPES[dst_type]
    require(dtype == torch.int8 or "fp8" in play.soc().features, "a 950 for fp8")
    groups = in_groups(x.float(), col_block_size)
    scales = groups.abs().amax(-1) / LARGEST[dtype]
    q = (groups / scales.unsqueeze(-1)).flatten(1)[:, : x.shape[1]]
    return as_codes(q, dtype), scales


@emulates("npu_dynamic_mx_quant")
def dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    dst_type: int = 296,
    block_size: int = 32,
    scale_alg: int | None = 0,
    max_low_bound: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    require(not others and axis == -1, f"what is emulated, not {sorted(others)}")
    require("mx" in play.soc().features, "a 950 for MX formats")
    require(DTYPES[dst_type] == E4M3 and scale_alg == 1, "scales of e4m3 that are rounded up")
    require(block_size % 32 == 0 and input.dtype in play.halves(), "groups of 32 times n, 16 bits")
    groups = in_groups(input.float(), block_size)
    largest = groups.abs().amax(-1).clamp(min=max_low_bound)
    exponents = torch.ceil(torch.log2(largest / LARGEST[E4M3]))
    q = (groups / torch.exp2(exponents).unsqueeze(-1)).flatten(1)[:, : input.shape[1]]
    bits = F.pad((exponents + 127).to(torch.uint8), (0, exponents.shape[1] % 2))
    return as_codes(q, E4M3), bits.view(len(bits), -1, 2)


@emulates("npu_quant_matmul")
def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    output_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    **others: Any,
) -> Tensor:
    require(not others, f"what is emulated, not {sorted(others)}")
    assert pertoken_scale is not None and output_dtype is not None
    require(x1.dtype == x2.dtype and x1.dtype in LARGEST, "codes of one kind")
    require(x1.dtype == torch.int8 or "fp8" in play.soc().features, "a 950 for fp8")
    require(scale.dtype == pertoken_scale.dtype == torch.float32, "scales in float32")
    require(max(x1.shape[-1], x2.shape[-1]) <= 65535, "at most 65535 columns")
    if group_sizes is None:
        y = (x1.double() @ x2.double()).float() * scale * pertoken_scale.unsqueeze(1)
    else:
        require(list(group_sizes) == [1, BLOCK, BLOCK] and x1.dtype == E4M3, "fp8 in blocks of 128")
        y = blocked(x1, pertoken_scale) @ blocked_weight(x2, scale)
    return y.to(DTYPES[output_dtype])


def blocked(q: Tensor, scales: Tensor) -> Tensor:
    """What rows of codes mean, whose scales are one for 128 columns."""
    return q.float() * scales.repeat_interleave(BLOCK, dim=-1)[..., : q.shape[-1]]


def blocked_weight(codes: Tensor, scales: Tensor) -> Tensor:
    """What a matrix [K, N] of codes means, whose scales [K / 128, N / 128] are one for a square."""
    return blocked(codes, scales.repeat_interleave(BLOCK, dim=-2)[..., : codes.shape[-2], :])


def as_codes(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    numbers = numbers.nan_to_num()
    if dtype == torch.int8:
        numbers = numbers.round().clamp(-128, 127)
    return numbers.clamp(-448, 448).to(dtype)


def in_groups(rows: Tensor, size: int) -> Tensor:
    filled = F.pad(rows, (0, -rows.shape[1] % size))
    return filled.view(len(rows), -1, size)
