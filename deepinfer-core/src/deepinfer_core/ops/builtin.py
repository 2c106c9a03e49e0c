"""The built-in kernels: what core itself claims. Torch-free; targets are imported when chosen.

Two providers. `torch.reference` is quick and serves by default. `torch.invariant` serves where a
batch-invariant kernel is asked for and the quick one is not. What is claimed here is run by the
conformance suite.
"""

from __future__ import annotations

from deepinfer_core.ops import OP_SPECS, UNIVERSAL_FEATURES
from deepinfer_core.ops.records import RECORD_FORMATS
from deepinfer_core.ops.spec import REFERENCE_PACKAGE, OpSpec
from deepinfer_core.ops.specs.sample import SAMPLE_KERNELS
from deepinfer_core.plugin_api.kernel import Caps, KernelSpec

FLOATS = ("float32", "bfloat16", "float16")
SCHEMES = (
    "int8_token",
    "fp8_token",
    "fp8_block128",
    "fp8_block128_ue8m0",
    "fp8_block32_ue8m0",
)

CODED_SCHEMES = ("fp8_block128", "fp8_block32", "mxfp4")
"""Of weights that stay codes."""

_DTYPES = {
    "kv.copy_blocks": ("uint8", *FLOATS),
    "kv.store": ("uint8", *FLOATS),
    "spec.verify": ("int32",),
}
_SCHEMES = {
    "quant.act": SCHEMES,
    "gemm.scaled": SCHEMES,
    "gemm.coded": CODED_SCHEMES,
    "moe.coded": CODED_SCHEMES,
    "quant.encode": tuple(RECORD_FORMATS),
    "quant.decode": tuple(RECORD_FORMATS),
    "index.select": ("132", "68"),
    "attn.sparse_mla": ("656", "584", "528", "528+288"),
}
_REFERENCE_PLANS = {
    "attn.paged": "paged_plan:plan_paged",
    "attn.mla": "paged_plan:plan_paged",
    "attn.mla_prefill": "expanded_attn:plan_expanded",
    "kv.store": "kv:plan_store",
}
_REFERENCE_PREPARES = {"gemm.dense": "gemm:prepare"}
_NOT_GRAPH_SAFE = frozenset(
    {
        "attn.paged",
        "attn.mla",
        "attn.mla_prefill",
        "index.select",
        "moe.experts",
        "moe.coded",
    }
)
"""Ops whose references take shapes from host values of the step."""
_INVARIANT = {
    "act.silu_mul": "invariant_act:silu_mul",
    "attn.paged": "invariant_attn:paged",
    "attn.mla": "invariant_attn:mla",
    "attn.mla_prefill": "invariant_attn:mla_prefill",
    "comm.all_reduce": "invariant_comm:all_reduce",
    "comm.reduce_scatter": "invariant_comm:reduce_scatter",
    "gemm.dense": "invariant_gemm:dense",
    "gemm.gated": "invariant_gemm:gated",
    "gemm.batched": "invariant_gemm:batched",
    "gemm.scaled": "invariant_gemm:scaled",
    "gemm.coded": "invariant_gemm:coded",
    "moe.experts": "invariant_moe:experts",
    "moe.coded": "invariant_moe:coded",
}
"""Ops whose quick reference rounds a row differently in another batch, and what does not."""
_INVARIANT_PLANS = {
    "attn.paged": "invariant_plan:plan_paged",
    "attn.mla": "invariant_plan:plan_paged",
    "attn.mla_prefill": "invariant_plan:plan_expanded",
}


def reference_kernels() -> list[KernelSpec]:
    """All built-in kernels, in order of op."""
    specs = [spec for spec in OP_SPECS.values() if spec.family != "sample"]
    return [
        *map(_reference, specs),
        *(_invariant(spec) for spec in specs if spec.name in _INVARIANT),
        *SAMPLE_KERNELS,
    ]


def _reference(spec: OpSpec) -> KernelSpec:
    is_invariant = spec.name not in _INVARIANT
    return KernelSpec(
        op=spec.key,
        provider="torch.reference",
        target=spec.reference,
        caps=_caps(spec, is_invariant=is_invariant),
        plan=_target(_REFERENCE_PLANS.get(spec.name)),
        prepare=_target(_REFERENCE_PREPARES.get(spec.name)),
        priority=0,
    )


def _invariant(spec: OpSpec) -> KernelSpec:
    return KernelSpec(
        op=spec.key,
        provider="torch.invariant",
        target=f"{REFERENCE_PACKAGE}.{_INVARIANT[spec.name]}",
        caps=_caps(spec, is_invariant=True),
        plan=_target(_INVARIANT_PLANS.get(spec.name)),
        # Slower than the reference, so it serves only where invariance is asked for.
        priority=-1,
    )


def _target(place: str | None) -> str | None:
    return place and f"{REFERENCE_PACKAGE}.{place}"


def _caps(spec: OpSpec, *, is_invariant: bool) -> Caps:
    refused = set() if is_invariant else {"batch_invariant"}
    if spec.name in _NOT_GRAPH_SAFE:
        refused.add("graph_safe")
    return Caps(
        device_kinds=("*",),
        dtypes=_DTYPES.get(spec.name, FLOATS),
        schemes=_SCHEMES.get(spec.name, ()),
        features=spec.features | (UNIVERSAL_FEATURES - refused),
    )
