"""FP8 matrices with one scale per block, as DeepSeek-V3 stores them (arXiv:2412.19437, 3.3).

A matrix `x.weight` [N, K] of e4m3 codes comes with `x.weight_scale_inv`, float32
[ceil(N / rows), ceil(K / columns)]; a number is its code times the scale of its block, despite the
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.source import TensorEntry, TensorSource

CODES = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
STRIPE_BLOCKS = 8
"""Rows of blocks that are converted at once, so that no matrix is ever whole in float32."""


class Fp8BlockSource:
    """Dequantises on the way. Implements `TensorSource`.

    Args:
        source: of the files; names of scales disappear.
        block_size: (rows, columns) that share a scale.

    Raises:
        ModelLoadError: a scale is missing or has another shape than its matrix asks for.
    """

    def __init__(self, source: TensorSource, block_size: tuple[int, int]) -> None:
        self._source = source
        self._block_size = block_size
        found = source.entries
        self._quantized = {name for name, entry in found.items() if entry.dtype == CODES}
        for name in self._quantized:
            _check_scale(name, found, block_size)
        scales = {name + SCALE_SUFFIX for name in self._quantized}
        self._entries = {
            name: replace(entry, is_loadable=True) if name in self._quantized else entry
            for name, entry in found.items()
            if name not in scales
        }

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    def read_into(self, name: str, destination: Tensor) -> None:
        if name not in self._quantized:
            self._source.read_into(name, destination)
            return
        codes = torch.empty(self._entries[name].shape, dtype=torch.float8_e4m3fn)
        scales = torch.empty(self._source.entries[name + SCALE_SUFFIX].shape)
        self._source.read_into(name, codes)
        self._source.read_into(name + SCALE_SUFFIX, scales)
        rows, columns = self._block_size
        per_column = scales.repeat_interleave(columns, dim=1)[:, : codes.shape[1]]
        stripe = STRIPE_BLOCKS * rows
        for first in range(0, codes.shape[0], stripe):
            block = first // rows
            factors = per_column[block : block + STRIPE_BLOCKS].repeat_interleave(rows, dim=0)
            numbers = codes[first : first + stripe].float()
            destination[first : first + stripe] = numbers.mul_(factors[: len(numbers)])


def _check_scale(name: str, found: Mapping[str, TensorEntry], block_size: tuple[int, int]) -> None:
    shape, scale = found[name].shape, found.get(name + SCALE_SUFFIX)
    if len(shape) != 2:
        raise ModelLoadError(f"{name}: FP8 tensors are matrices, found {list(shape)}")
    wanted = tuple(-(-size // block) for size, block in zip(shape, block_size, strict=True))
    if scale is None or scale.shape != wanted:
        has = "is missing" if scale is None else f"has shape {list(scale.shape)}"
        raise ModelLoadError(
            f"{name + SCALE_SUFFIX} {has}; {name} {list(shape)} in blocks of {list(block_size)} "
            f"needs {list(wanted)}"
        )
