"""Kernels in Triton, for what has no fused operator."""

from __future__ import annotations

from importlib.util import find_spec

from deepinfer_core.plugin_api import KernelSpec, Problem, Reason

from deepinfer_ascend.claims.claim import DTYPES, claim
from deepinfer_ascend.soc import Soc

PROVIDER = "ascend.triton"
MAX_SIZE = 8192
"""Numbers of a row, which a vector core holds whole."""


def fits_core(problem: Problem) -> bool | Reason:
    """Whether there is a compiler, and room for a row."""
    if find_spec("triton") is None:
        return Reason("needs triton-ascend, which is not installed")
    size = problem.dim("hidden_size") or 0
    return True if size <= MAX_SIZE else Reason(f"rows of {size} numbers, at most {MAX_SIZE} fit")


def kernels(soc: Soc) -> list[KernelSpec]:
    del soc
    return [
        _claim("norm.layer", "layer", "residual", "bias"),
        _claim("hc.collapse", "collapse"),
        _claim("engram.gate", "gate"),
        _claim("kv.compress", "compress", "strided_cache", dtypes=("float32",)),
    ]


def _claim(op: str, target: str, *features: str, dtypes: tuple[str, ...] = DTYPES) -> KernelSpec:
    return claim(
        op,
        f"portable:{target}",
        *features,
        dtypes=dtypes,
        supports=fits_core,
        provider=PROVIDER,
        priority=10,
    )
