"""MXFP4 matrices: two e2m1 codes a byte, and a power of two for every 32 of them.

As DeepSeek-V4 stores its experts (OCP Microscaling Formats 1.0): `x.weight` [N, K / 2] bytes, the
even column in the low half; `x.scale` [N, K / 32].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.ops.reference.codes import GROUP, MXFP4, decode_mxfp4
from deepinfer_core.weights.quant.scales import POWERS, check_scales, read_scales
from deepinfer_core.weights.source import RowSource, TensorEntry

BYTES = "I8"
STRIPE_ROWS = 256
"""Rows that are decoded at once."""


class Mxfp4:
    """A `Scheme`."""

    def scale_name(self, name: str, entries: Mapping[str, TensorEntry]) -> str | None:
        entry, scale_name = entries[name], f"{name.removesuffix('.weight')}.scale"
        scale = entries.get(scale_name)
        if entry.dtype != BYTES or scale is None or scale.dtype != POWERS:
            return None
        if len(entry.shape) != 2:
            raise ModelLoadError(f"{name}: FP4 tensors are matrices, found {list(entry.shape)}")
        num_rows, num_bytes = entry.shape
        check_scales(name, scale_name, (num_rows, 2 * num_bytes // GROUP), entries)
        return scale_name

    @property
    def kept_as(self) -> str | None:
        return MXFP4

    def decoded(self, entry: TensorEntry) -> TensorEntry:
        num_rows, num_bytes = entry.shape
        return TensorEntry((num_rows, 2 * num_bytes), entry.dtype)

    def read_rows(
        self, source: RowSource, name: str, scale_name: str, first_row: int, out: Tensor
    ) -> None:
        num_bytes = source.entries[name].shape[1]
        scales = read_scales(source, scale_name)[first_row : first_row + len(out)]
        for first in range(0, len(out), STRIPE_ROWS):
            rows = slice(first, min(first + STRIPE_ROWS, len(out)))
            stored = torch.empty(rows.stop - first, num_bytes, dtype=torch.uint8)
            source.read_rows(name, first_row + first, stored)
            out[rows] = decode_mxfp4(stored, scales[rows])
