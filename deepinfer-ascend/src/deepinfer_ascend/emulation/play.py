"""Which generation of chip the emulation plays: what one refuses, another may take."""

from __future__ import annotations

import torch

from deepinfer_ascend.soc import Soc, soc_of

WIDE = "float32"
"""A device with this feature also takes float32 where chips multiply 16 bits only, so that tokens
can be compared without their roundings."""
_HALVES = (torch.float16, torch.bfloat16)
_PLAYED: list[tuple[Soc, bool]] = []


def as_soc(arch: str, *, is_wide: bool) -> None:
    """Be a chip of this generation from now on, in this process."""
    _PLAYED[:] = [(soc_of(arch), is_wide)]


def soc() -> Soc:
    """The generation that is emulated now."""
    return _PLAYED[0][0]


def halves() -> tuple[torch.dtype, ...]:
    """What operators of 16 bits take."""
    is_wide = _PLAYED[0][1]
    return (*_HALVES, torch.float32) if is_wide else _HALVES
