"""What the plugin's kernels claim, one module per family. Imports neither torch nor Triton."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_cuda.claims import attention, dense, rows


def all_kernels() -> list[KernelSpec]:
    return [*rows.KERNELS, *dense.KERNELS, *attention.KERNELS]
