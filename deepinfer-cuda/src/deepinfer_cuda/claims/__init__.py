"""What the plugin's kernels claim, one module per family. Imports neither torch nor Triton."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_cuda.claims import (
    adapters,
    attention,
    coded,
    dense,
    invariant,
    latent,
    moe,
    rows,
    sampling,
    streams,
)


def all_kernels() -> list[KernelSpec]:
    return [
        *rows.KERNELS,
        *dense.KERNELS,
        *attention.KERNELS,
        *latent.KERNELS,
        *moe.KERNELS,
        *coded.KERNELS,
        *sampling.KERNELS,
        *streams.KERNELS,
        *invariant.KERNELS,
        *adapters.KERNELS,
    ]
