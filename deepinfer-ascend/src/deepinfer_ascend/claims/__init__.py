"""Every kernel that this plugin claims, one module per family."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims import attention, dense, moe, portable, rows, streams
from deepinfer_ascend.soc import Soc

FAMILIES = (rows, dense, attention, moe, streams, portable)


def all_kernels(soc: Soc) -> list[KernelSpec]:
    """What a chip of this generation has operators for, in no particular order."""
    return [kernel for family in FAMILIES for kernel in family.kernels(soc)]
