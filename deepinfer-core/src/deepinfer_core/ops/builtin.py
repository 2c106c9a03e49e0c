"""The built-in kernels: what core itself claims. Torch-free; targets are imported when chosen.

Two providers. `torch.reference` is quick and serves by default. `torch.invariant` serves where a
batch-invariant kernel is asked for and the quick one is not. What is claimed here is run by the
conformance suite.
"""

from __future__ import annotations

from deepinfer_core.ops import OP_SPECS, UNIVERSAL_FEATURES
from deepinfer_core.ops.spec import REFERENCE_PACKAGE, OpSpec
from deepinfer_core.ops.specs.sample import SAMPLE_KERNELS
from deepinfer_core.plugin_api.kernel import Caps, KernelSpec

FLOATS = ("float32", "bfloat16", "float16")
SCHEMES = ("int8_token", "fp8_token", "fp8_block128")

_DTYPES = {"kv.copy_blocks": ("uint8", *FLOATS)}
_SCHEMES = {"quant.act": SCHEMES, "gemm.scaled": SCHEMES}
_PLANS = {"attn.paged": "paged_plan:plan_paged"}

_NOT_INVARIANT = frozenset(
    {"act.silu_mul", "gemm.dense", "gemm.scaled", "attn.paged", "attn.merge"}
    | {"moe.route", "moe.experts", "comm.all_reduce", "comm.reduce_scatter", "rope.apply"}
)
"""Ops whose quick reference rounds a row differently in another batch."""
_NOT_GRAPH_SAFE = frozenset({"attn.paged", "moe.experts"})
"""Ops whose reference takes shapes from host values of the step."""


def reference_kernels() -> list[KernelSpec]:
    """All built-in kernels, in order of op."""
    specs = [spec for spec in OP_SPECS.values() if spec.family != "sample"]
    return [*map(_reference, specs), *SAMPLE_KERNELS]


def _reference(spec: OpSpec) -> KernelSpec:
    laws = set(UNIVERSAL_FEATURES)
    if spec.name in _NOT_INVARIANT:
        laws.discard("batch_invariant")
    if spec.name in _NOT_GRAPH_SAFE:
        laws.discard("graph_safe")
    plan = _PLANS.get(spec.name)
    return KernelSpec(
        op=spec.key,
        provider="torch.reference",
        target=spec.reference,
        caps=_caps(spec, laws),
        plan=f"{REFERENCE_PACKAGE}.{plan}" if plan else None,
        priority=0,
    )


def _caps(spec: OpSpec, laws: set[str]) -> Caps:
    return Caps(
        device_kinds=("*",),
        dtypes=_DTYPES.get(spec.name, FLOATS),
        schemes=_SCHEMES.get(spec.name, ()),
        features=spec.features | laws,
    )
