"""A plugin's kernel for a norm and the product behind it changes no bit of a model."""

import sys
import types

import pytest
import torch
from deepinfer_core.models.layers.linear import MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.normed_linear import NormedLinear
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.reference import gemm
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec

SIZE, INNER = 24, 40
FEATURES = frozenset({"bias", "limit", "residual", "gated"})


@pytest.fixture
def calls(monkeypatch):
    """The options that the fused kernel was called with."""
    seen = []

    def counted(*args, **options):
        seen.append(options)
        return gemm.normed(*args, **options)

    module = types.ModuleType("fused_norms")
    module.counted = counted
    monkeypatch.setitem(sys.modules, "fused_norms", module)
    return seen


def layers(*, has_fused, keeps_weights=True, **options):
    caps = Caps(device_kinds=("*",), dtypes=("float32",), features=FEATURES)
    plain = "deepinfer_core.ops.reference.gemm:linear"
    kernels = reference_kernels()
    if has_fused:
        kernels.append(
            KernelSpec("gemm.normed@1", "acme.fused", "fused_norms:counted", caps, priority=20)
        )
    if keeps_weights:
        kernels.append(KernelSpec("gemm.dense@1", "acme.plain", plain, caps, priority=20))
    ops = make_op_table(kernels, device=DeviceInfo(kind="cpu"))
    norm = RMSNorm(ops, SIZE, 1e-6, dtype="float32", role="norm", residual=True)
    parts = {"gate_proj": INNER, "up_proj": INNER}
    linear = MergedLinear(ops, SIZE, parts, dtype="float32", role="linear", bias=True)
    generator = torch.Generator().manual_seed(3)
    for parameter in (*norm.parameters(), *linear.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return norm, linear, NormedLinear(ops, norm, linear, **options)


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("options", [{}, {"is_gated": True, "limit": 0.5}])
def test_results_are_the_same_bits(options, has_residual, calls):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, SIZE, generator=generator)
    residual = torch.randn(5, SIZE, generator=generator) if has_residual else None
    norm, linear, fused = layers(has_fused=True, **options)
    assert fused.is_fused
    y, total = fused(x, residual)
    rows, expected_total = norm.add_norm(x, residual)
    if options:
        expected = gemm.gated(rows, linear.weight, linear.bias, options["limit"])
    else:
        expected = linear(rows)
    assert calls == [options]
    assert torch.equal(y, expected) and torch.equal(total, expected_total)


def test_without_a_kernel_or_with_weights_laid_out_anew_nothing_is_fused(calls):
    assert not layers(has_fused=False)[2].is_fused
    assert not layers(has_fused=True, keeps_weights=False)[2].is_fused


def test_codes_are_not_for_it(calls):
    _, linear, fused = layers(has_fused=True)
    linear.scale = torch.nn.Parameter(torch.ones(1, 1), requires_grad=False)
    assert not fused.is_fused
