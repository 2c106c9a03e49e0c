"""FP8 matrices with one scale per block.

DeepSeek-V3 (arXiv:2412.19437, section 3.3) stores `x.weight` [N, K] of e4m3 codes beside
`x.weight_scale_inv`, float32 [ceil(N / rows), ceil(K / columns)]; V4 calls it `x.scale` and stores
powers of two. A number is its code times the scale of its block, despite V3's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.quant.scales import check_scales, read_scales
from deepinfer_core.weights.source import TensorEntry, TensorSource

CODES = "F8_E4M3"
STRIPE_BLOCKS = 8
"""Rows of blocks that are decoded at once, so that no matrix is ever whole in float32."""


class Fp8Block:
    """A `Scheme`.

    Args:
        block_size: (rows, columns) that share a scale.
    """

    def __init__(self, block_size: tuple[int, int]) -> None:
        self._block_size = block_size

    def scale_name(self, name: str, entries: Mapping[str, TensorEntry]) -> str | None:
        entry = entries[name]
        if entry.dtype != CODES:
            return None
        if len(entry.shape) != 2:
            raise ModelLoadError(f"{name}: FP8 tensors are matrices, found {list(entry.shape)}")
        short = f"{name.removesuffix('.weight')}.scale"
        scale_name = short if short in entries else f"{name}_scale_inv"
        sizes = zip(entry.shape, self._block_size, strict=True)
        check_scales(name, scale_name, tuple(-(-size // block) for size, block in sizes), entries)
        return scale_name

    def decoded(self, entry: TensorEntry) -> TensorEntry:
        return replace(entry, is_loadable=True)

    def read_into(self, source: TensorSource, name: str, scale_name: str, out: Tensor) -> None:
        codes = torch.empty(source.entries[name].shape, dtype=torch.float8_e4m3fn)
        source.read_into(name, codes)
        rows, columns = self._block_size
        scales = read_scales(source, scale_name)
        per_column = scales.repeat_interleave(columns, dim=1)[:, : codes.shape[1]]
        stripe = STRIPE_BLOCKS * rows
        for first in range(0, codes.shape[0], stripe):
            block = first // rows
            factors = per_column[block : block + STRIPE_BLOCKS].repeat_interleave(rows, dim=0)
            numbers = codes[first : first + stripe].float()
            out[first : first + stripe] = numbers.mul_(factors[: len(numbers)])
