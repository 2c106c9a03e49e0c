"""Scales of quantised matrices: where they are, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.ops.reference.codes import powers_of_two
from deepinfer_core.weights.source import TensorEntry, TensorSource

POWERS = "F8_E8M0"
"""Scales that are powers of two: a byte b means 2^(b - 127)."""


def check_scales(
    name: str, scale_name: str, wanted: tuple[int, ...], entries: Mapping[str, TensorEntry]
) -> None:
    """Compare the shape of scales with what a matrix needs.

    Raises:
        ModelLoadError: they are missing or of another shape.
    """
    scale = entries.get(scale_name)
    if scale is None or scale.shape != wanted:
        has = "is missing" if scale is None else f"has shape {list(scale.shape)}"
        shape = list(entries[name].shape)
        raise ModelLoadError(f"{scale_name} {has}; {name} {shape} needs {list(wanted)}")


def read_scales(source: TensorSource, name: str) -> Tensor:
    """The scales as float32."""
    entry = source.entries[name]
    if entry.dtype != POWERS:
        scales = torch.empty(entry.shape)
        source.read_into(name, scales)
        return scales
    # As bytes: a copy that converts numbers would destroy them.
    stored = torch.empty(entry.shape, dtype=torch.float8_e8m0fnu)
    source.read_into(name, stored)
    return powers_of_two(stored.view(torch.uint8))
