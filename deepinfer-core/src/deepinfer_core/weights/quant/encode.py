"""Matrices as FP8 and MXFP4 codes with scales: the inverse of what the schemes decode.

Scales are the smallest with which no code overflows; powers of two are rounded up to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.reference.codes import GROUP, MAGNITUDES

FP8_MAX = 448.0
FP4_MAX = 6.0
MIN_AMAX = 1e-4
"""Below it a block counts as so large, so that scales stay ordinary numbers."""


def encode_fp8(
    numbers: Tensor, block_size: tuple[int, int], *, powers: bool
) -> tuple[Tensor, Tensor]:
    """Encode a matrix by blocks.

    Args:
        numbers: [N, K] floating point.
        block_size: (rows, columns) that share a scale.
        powers: scales are powers of two.

    Returns:
        codes [N, K] float8_e4m3fn, and scales [ceil(N / rows), ceil(K / columns)]: float8_e8m0fnu
        for powers, else float32.
    """
    num_rows, num_columns = numbers.shape
    rows, columns = block_size
    grid = (-(-num_rows // rows), -(-num_columns // columns))
    padded = torch.zeros(grid[0] * rows, grid[1] * columns)
    padded[:num_rows, :num_columns] = numbers
    blocks = padded.view(grid[0], rows, grid[1], columns)
    scales = blocks.abs().amax(dim=(1, 3)).clamp_(min=MIN_AMAX) / FP8_MAX
    if powers:
        scales = _next_power(scales)
    codes = (blocks / scales[:, None, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    codes = codes.reshape(padded.shape)[:num_rows, :num_columns].to(torch.float8_e4m3fn)
    return codes.contiguous(), to_power_bytes(scales) if powers else scales


def encode_mxfp4(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Encode a matrix with one power of two for each 32 numbers of a row; ties to the even code.

    Args:
        numbers: [N, K] floating point, K a multiple of 32.

    Returns:
        bytes [N, K / 2] int8, the even column in the low half, and scales [N, K / 32]
        float8_e8m0fnu.
    """
    groups = numbers.float().view(numbers.shape[0], -1, GROUP)
    scales = _next_power(groups.abs().amax(dim=2).clamp_(min=MIN_AMAX) / FP4_MAX)
    scaled = (groups / scales.unsqueeze(2)).flatten(1)
    codes = _nearest_code(scaled.abs()) | (scaled < 0).to(torch.uint8) << 3
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.view(torch.int8), to_power_bytes(scales)


def to_power_bytes(scales: Tensor) -> Tensor:
    """Powers of two as float8_e8m0fnu: the byte is the exponent + 127."""
    exponents = torch.frexp(scales).exponent - 1
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _next_power(scales: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(scales)  # the mantissa of a power of two is 0.5
    return torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())


def _nearest_code(magnitudes: Tensor) -> Tensor:
    values = torch.tensor(MAGNITUDES)
    middles = (values[1:] + values[:-1]) / 2
    # At a middle the even of the two codes wins: below odd codes the middle itself stays below.
    up = torch.bucketize(magnitudes, middles, right=True).to(torch.uint8)
    down = torch.bucketize(magnitudes, middles, right=False).to(torch.uint8)
    return torch.where(up % 2 == 0, up, down)
