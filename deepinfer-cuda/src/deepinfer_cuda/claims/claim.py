"""`claim`: a kernel of this plugin, written down briefly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deepinfer_core.plugin_api import Caps, KernelSpec

from deepinfer_cuda.probe import KIND

DTYPES = ("float32", "bfloat16", "float16")
LAWS = frozenset({"deterministic", "empty_ok", "graph_safe"})
INVARIANT = LAWS | {"batch_invariant"}
OLDEST = "8.0"
"""Compute capability from which Triton's kernels run."""
OLDEST_E4M3 = "8.9"
"""From which Triton knows the type."""

PACKAGE = "deepinfer_cuda.kernels"
COMPILE_FAILURE = "deepinfer_cuda.compile_errors:compile_failure"


def claim(
    op: str,
    target: str,
    *features: str,
    laws: frozenset[str] = INVARIANT,
    dtypes: tuple[str, ...] = DTYPES,
    schemes: tuple[str, ...] = (),
    plan: str | None = None,
    **fields: Any,
) -> KernelSpec:
    """A kernel of this plugin.

    Args:
        target, plan: `module:function` within the package of kernels.
        fields: others of `KernelSpec`, where they differ from those of most kernels here.
    """
    caps = Caps(
        device_kinds=(KIND,),
        arch=(OLDEST, None),
        dtypes=dtypes,
        schemes=schemes,
        features=laws | frozenset(features),
    )
    all_fields: dict[str, Any] = {
        "provider": "cuda.triton",
        "priority": 10,
        "compile_failure": COMPILE_FAILURE,
        **fields,
    }
    return KernelSpec(
        op=f"{op}@1",
        target=f"{PACKAGE}.{target}",
        plan=plan and f"{PACKAGE}.{plan}",
        caps=caps,
        **all_fields,
    )


def since(oldest: str, kernel: KernelSpec) -> KernelSpec:
    """The same claim, from a compute capability on."""
    return replace(kernel, caps=replace(kernel.caps, arch=(oldest, None)))
