"""The storage formats of the cube units: what a weight is turned into once, at load."""

from __future__ import annotations

import torch
from torch import Tensor

FRACTAL_NZ = 29
"""Tiles of 16 rows by 32 bytes, column by column of tiles: what the cube units read without
rearranging. A tensor keeps its shape; only operators of the vendor see the format."""
TILE_ROWS = 16
TILE_BYTES = 32


def fits_nz(weight: Tensor) -> bool:
    """Whether whole tiles hold this matrix. Rows and columns may become each other."""
    unit = max(TILE_ROWS, TILE_BYTES // weight.element_size())
    is_small = weight.element_size() <= 2
    return is_small and all(size % unit == 0 for size in weight.shape[-2:])


def to_nz(weight: Tensor) -> Tensor:
    """The same numbers in the format of the cube units; plain where no whole tiles hold them."""
    if not fits_nz(weight):
        return weight
    tiled: Tensor = torch.ops.npu.npu_format_cast(weight.contiguous(), FRACTAL_NZ)
    return tiled
