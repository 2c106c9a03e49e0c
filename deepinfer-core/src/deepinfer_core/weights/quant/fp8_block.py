"""FP8 matrices with one scale per block.

DeepSeek-V3 (arXiv:2412.19437, section 3.3) stores `x.weight` [N, K] of e4m3 codes beside
`x.weight_scale_inv`, float32 [ceil(N / rows), ceil(K / columns)]; V4 calls it `x.scale` and stores
powers of two. A number is its code times the scale of its block, despite V3's name. Tables of
V4.1, whose rows are looked up one by one, have blocks of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.ops.reference.codes import STRIPE_ELEMENTS, decode_fp8, fp8_scheme
from deepinfer_core.weights.quant.scales import check_scales, read_scales
from deepinfer_core.weights.source import RowSource, TensorEntry

CODES = "F8_E4M3"


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
        rows, columns = self._block_size
        num_rows, num_columns = entry.shape
        wanted = (-(-num_rows // rows), -(-num_columns // columns))
        scale = entries.get(scale_name)
        if scale is not None and scale.shape == (num_rows, wanted[1]):
            wanted = scale.shape
        check_scales(name, scale_name, wanted, entries)
        return scale_name

    @property
    def kept_as(self) -> str | None:
        return fp8_scheme(self._block_size)

    def decoded(self, entry: TensorEntry) -> TensorEntry:
        return replace(entry, is_loadable=True)

    def read_rows(
        self, source: RowSource, name: str, scale_name: str, first_row: int, out: Tensor
    ) -> None:
        num_rows, num_columns = source.entries[name].shape
        rows, columns = self._block_size
        scales = read_scales(source, scale_name)
        if scales.shape[0] == num_rows:
            rows = 1
        stripe = rows * max(1, STRIPE_ELEMENTS // (rows * num_columns))
        end_row = first_row + len(out)
        # Scales are of whole blocks: a stripe begins with one, even before the first row.
        for first in range(first_row - first_row % rows, end_row, stripe):
            end = min(first + stripe, end_row)
            codes = torch.empty(end - first, num_columns, dtype=torch.float8_e4m3fn)
            source.read_rows(name, first, codes)
            blocks = slice(first // rows, -(-end // rows))
            numbers = decode_fp8(codes, scales[blocks], (rows, columns))
            begin = max(first, first_row)
            out[begin - first_row : end - first_row] = numbers[begin - first :]
