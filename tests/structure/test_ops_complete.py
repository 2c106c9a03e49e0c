"""Every op has a reference with the same signature, a docstring, and conformance cases."""

import inspect

import pytest
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.plugin_api import KernelSpec, load_target
from deepinfer_core.plugin_checks import record_problem

TIER_0 = {
    "norm.rms", "norm.layer", "act.silu_mul", "rope.apply", "gemm.dense", "quant.act",
    "gemm.scaled", "kv.store", "kv.copy_blocks", "attn.paged", "attn.merge", "moe.route",
    "moe.experts", "comm.all_reduce", "comm.all_gather", "comm.reduce_scatter",
    "comm.all_to_all", "sample.stages", "sample.mask", "sample.draw", "sample.logprobs",
}  # fmt: skip


def test_tier_0_is_complete():
    assert {name for name, spec in OP_SPECS.items() if spec.tier == 0} >= TIER_0


@pytest.mark.parametrize("name", sorted(OP_SPECS))
def test_the_reference_has_the_signature_of_the_spec(name):
    spec = OP_SPECS[name]
    ours = inspect.signature(load_target(spec.reference))

    def shape(signature):
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert shape(ours) == shape(spec.signature)


@pytest.mark.parametrize("name", sorted(OP_SPECS))
def test_the_docstring_names_every_argument(name):
    spec = OP_SPECS[name]
    silent = [p for p in spec.signature.parameters if p not in spec.doc]
    assert silent == []


def test_every_built_in_kernel_is_a_valid_claim_and_resolves():
    kernels = reference_kernels()
    assert {kernel.op for kernel in kernels} == {spec.key for spec in OP_SPECS.values()}
    for kernel in kernels:
        assert record_problem(kernel, KernelSpec) is None
        assert callable(load_target(kernel.target))
        if kernel.plan:
            assert callable(load_target(kernel.plan))


def test_every_op_can_be_had_batch_invariant_and_deterministic():
    """The reference backend provides both filters for every op, so that `verify` can be strict."""
    for flag in ("batch_invariant", "deterministic"):
        having = {kernel.op for kernel in reference_kernels() if flag in kernel.caps.features}
        assert {spec.key for spec in OP_SPECS.values()} - having == set(), flag
