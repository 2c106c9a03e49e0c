"""A plugin's kernel for the gated product of an MLP changes no bit."""

import sys
import types

import pytest
import torch
from deepinfer_core.models.layers.mlp import GatedMLP
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.reference.gemm import gated
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec

SIZE, INNER = 24, 40


@pytest.fixture
def calls(monkeypatch):
    """The limits that the fused kernel was called with."""
    seen = []

    def counted(x, weight, bias=None, limit=None):
        seen.append(limit)
        return gated(x, weight, bias, limit)

    module = types.ModuleType("fused_gates")
    module.counted = counted
    monkeypatch.setitem(sys.modules, "fused_gates", module)
    return seen


def kernels_of_a_device():
    """Core's, whose products take weights as they are, as those of a device do."""
    features = frozenset({"bias", "limit"})
    caps = Caps(device_kinds=("*",), dtypes=("float32",), features=features)
    plain = "deepinfer_core.ops.reference.gemm:linear"
    return [
        KernelSpec("gemm.gated@1", "acme.fused", "fused_gates:counted", caps, priority=20),
        KernelSpec("gemm.dense@1", "acme.plain", plain, caps, priority=20),
    ]


def mlp(kernels, **options):
    table = make_op_table([*kernels, *reference_kernels()], device=DeviceInfo(kind="cpu"))
    layer = GatedMLP(table, SIZE, INNER, dtype="float32", **options)
    generator = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


@pytest.mark.parametrize("options", [{"bias": False}, {"bias": True, "limit": 0.5}])
def test_results_are_the_same_bits(options, calls):
    x = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    fused, dense = kernels_of_a_device()
    expected = mlp([dense], **options)(x)
    assert calls == []
    assert torch.equal(mlp([fused, dense], **options)(x), expected)
    assert calls == [options.get("limit")]


def test_weights_that_are_laid_out_anew_are_not_for_it(calls):
    fused, _ = kernels_of_a_device()
    mlp([fused], bias=False)(torch.ones(2, SIZE))
    assert calls == []
