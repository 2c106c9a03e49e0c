"""`claim`: a kernel of this plugin, written down briefly."""

from __future__ import annotations

from typing import Any

from deepinfer_core.plugin_api import Caps, KernelSpec

from deepinfer_ascend.soc import KIND, OLDEST

HALVES = ("bfloat16", "float16")
"""What the cube units multiply; most fused operators take nothing else."""
DTYPES = ("float32", *HALVES)
LAWS = frozenset({"deterministic", "empty_ok"})
"""Of every kernel here. Vendor operators promise no bits that are independent of the batch."""
RECORDED = LAWS | {"graph_safe"}
"""Of those besides that take nothing from the host that changes from step to step."""
PACKAGE = "deepinfer_ascend.kernels"


def claim(
    op: str,
    target: str,
    *features: str,
    laws: frozenset[str] = RECORDED,
    dtypes: tuple[str, ...] = HALVES,
    arch: tuple[str | None, str | None] = (OLDEST, None),
    plan: str | None = None,
    prepare: str | None = None,
    schemes: tuple[str, ...] = (),
    dims: dict[str, tuple[int, ...]] | None = None,
    **fields: Any,
) -> KernelSpec:
    """A kernel of this plugin.

    Args:
        target, plan, prepare: `module:function` within the package of kernels.
        fields: others of `KernelSpec`, where they differ from those of most kernels here.
    """
    caps = Caps(
        device_kinds=(KIND,),
        arch=arch,
        dtypes=dtypes,
        schemes=schemes,
        features=laws | frozenset(features),
        dims=dims or {},
    )
    all_fields: dict[str, Any] = {"provider": "ascend.fused", "priority": 20} | fields
    return KernelSpec(
        op=f"{op}@1",
        target=f"{PACKAGE}.{target}",
        plan=plan and f"{PACKAGE}.{plan}",
        prepare=prepare and f"{PACKAGE}.{prepare}",
        caps=caps,
        **all_fields,
    )
