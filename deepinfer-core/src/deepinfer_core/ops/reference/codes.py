"""Weights that stay codes with scales: their schemes, and the numbers that they mean."""

from __future__ import annotations

import torch
from torch import Tensor

FP8_BLOCKS = {"fp8_block128": 128, "fp8_block32": 32}
"""Scheme of e4m3 codes -> side of the square block that shares a float32 scale."""
MXFP4 = "mxfp4"
GROUP = 32
"""Numbers of a row that share a scale in MXFP4 (OCP Microscaling Formats 1.0)."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the eight codes of e2m1; the fourth bit is the sign."""
STRIPE_ELEMENTS = 1 << 20
"""Decoded at once, so that no matrix is ever whole in float32."""


def decode_weight(codes: Tensor, scales: Tensor, scheme: str, dtype: torch.dtype) -> Tensor:
    """The numbers of a matrix.

    Args:
        codes: [N, K] float8_e4m3fn, or [N, K / 2] uint8 for `mxfp4`.
        scales: as `gemm.coded` describes them.

    Returns:
        [N, K] of the dtype; each number rounded once.

    Raises:
        ValueError: the scheme is unknown.
    """
    if scheme != MXFP4 and scheme not in FP8_BLOCKS:
        raise ValueError(f"no scheme {scheme!r} of weights; known: {', '.join(FP8_BLOCKS)}, mxfp4")
    num_rows, width = codes.shape
    num_columns = 2 * width if scheme == MXFP4 else width
    side = FP8_BLOCKS.get(scheme, 1)
    out = torch.empty(num_rows, num_columns, dtype=dtype, device=codes.device)
    step = side * max(1, STRIPE_ELEMENTS // (side * num_columns))
    for first in range(0, num_rows, step):
        part = codes[first : first + step]
        own_scales = scales[first // side : -(-(first + step) // side)]
        if scheme == MXFP4:
            numbers = decode_mxfp4(part, powers_of_two(own_scales))
        else:
            numbers = decode_fp8(part, own_scales, (side, side))
        out[first : first + step] = numbers
    return out


def fp8_scheme(block_size: tuple[int, int]) -> str | None:
    """The scheme whose blocks have so many rows and columns; None if there is none."""
    return next((name for name, side in FP8_BLOCKS.items() if block_size == (side, side)), None)


def decode_fp8(codes: Tensor, scales: Tensor, block_size: tuple[int, int]) -> Tensor:
    """Codes [N, K] and scales [ceil(N / rows), ceil(K / columns)] float32 -> [N, K] float32."""
    num_rows, num_columns = codes.shape
    rows, columns = block_size
    factors = scales.repeat_interleave(columns, dim=1)[:, :num_columns]
    return codes.float().mul_(factors.repeat_interleave(rows, dim=0)[:num_rows])


def decode_mxfp4(stored: Tensor, scales: Tensor) -> Tensor:
    """Bytes [N, K / 2] uint8 and scales [N, K / 32] float32 -> numbers [N, K] float32."""
    codes = torch.stack((stored & 15, stored >> 4), dim=2).flatten(1)
    numbers = e2m1_numbers(stored.device)[codes.long()]
    return numbers.mul_(scales.repeat_interleave(GROUP, dim=1))


def e2m1_numbers(device: torch.device) -> Tensor:
    """[16] float32, what the codes of e2m1 mean; made on the device, since a copy would wait."""
    codes = torch.arange(16, dtype=torch.float32, device=device)
    magnitude = codes % 8
    odd = magnitude % 2
    exponent = (magnitude - odd) / 2
    numbers = torch.where(exponent > 0, (2 + odd) * torch.exp2(exponent - 2), odd / 2)
    return torch.where(codes < 8, numbers, -numbers)


def powers_of_two(exponents: Tensor) -> Tensor:
    """uint8 bytes b -> 2^(b - 127) float32."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.int() - 127)
