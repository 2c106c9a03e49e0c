"""`claim`: a kernel of this plugin, written down briefly."""

from __future__ import annotations

from typing import Any

from deepinfer_core.plugin_api import Caps, KernelSpec

from deepinfer_ascend.soc import KIND

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
    **fields: Any,
) -> KernelSpec:
    """A kernel of this plugin.

    Args:
        target: `module:function` within the package of kernels, as are `plan` and `prepare`.
        fields: others of `KernelSpec` and of `Caps`, where they differ from those of most kernels.
    """
    caps = Caps(
        device_kinds=(KIND,),
        dtypes=dtypes,
        dims=fields.pop("dims", {}),
        features=laws | frozenset(features),
        schemes=fields.pop("schemes", ()),
    )
    places = {"target": target}
    places |= {name: fields.pop(name) for name in ("plan", "prepare") if name in fields}
    places = {name: f"{PACKAGE}.{place}" for name, place in places.items()}
    all_fields: dict[str, Any] = {"provider": "ascend.fused", "priority": 20} | fields | places
    return KernelSpec(op=f"{op}@1", caps=caps, **all_fields)
