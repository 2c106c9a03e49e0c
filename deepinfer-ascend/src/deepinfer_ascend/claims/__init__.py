"""Every kernel that this plugin claims, one module per family."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims import dense, rows

FAMILIES = (rows, dense)


def all_kernels() -> list[KernelSpec]:
    """In no particular order: which of them serves is a matter of what they claim."""
    return [kernel for family in FAMILIES for kernel in family.KERNELS]
