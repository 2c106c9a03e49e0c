"""All emulated operators, and the generation of chip that they play."""

from __future__ import annotations

from deepinfer_ascend.emulation import registry, rows
from deepinfer_ascend.soc import Soc, soc_of

MODULES = (rows,)
_PLAYED: list[Soc] = []


def install(arch: str) -> None:
    """Define the operators in this process, as a chip of this generation has them."""
    registry.install()
    _PLAYED[:] = [soc_of(arch)]


def played() -> Soc:
    """The generation that is emulated now."""
    return _PLAYED[0]
