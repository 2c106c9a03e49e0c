"""Stored types: what safetensors files call them, and which tensors want codes, not numbers."""

from __future__ import annotations

import torch
from torch import Tensor

STORED_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Spelling in the file -> dtype."""

CODES: dict[torch.dtype, tuple[str, ...]] = {
    torch.float8_e4m3fn: ("F8_E4M3",),
    torch.float8_e8m0fnu: ("F8_E8M0", "U8"),
    torch.int8: ("I8", "U8"),
    torch.uint8: ("U8", "I8", "F8_E8M0"),
}
"""Dtypes that ask for stored codes, and the stored types whose bytes they take."""


def holds_codes(tensor: Tensor) -> bool:
    """Whether a tensor wants the bytes of a file, rather than the numbers that these mean."""
    return tensor.dtype in CODES


def copy_stored(stored: Tensor, destination: Tensor) -> None:
    """Copy what a file holds: as bytes where codes are wanted, else as numbers.

    A copy that converts would destroy codes: float8_e8m0fnu to uint8 rounds the powers of two.
    """
    destination.copy_(stored.view(destination.dtype) if holds_codes(destination) else stored)
