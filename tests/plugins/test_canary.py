"""The frozen fake vendor of API 1.0 keeps working, hook by hook."""

import sys
from pathlib import Path

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import UnsupportedOpError
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import (
    GrammarBackendSpec,
    KVConnectorSpec,
    ProposerSpec,
    QuantSchemeSpec,
    StatLoggerSpec,
)
from deepinfer_core.plugin_checks import HOOKS
from deepinfer_core.plugins import PluginHost

HERE = Path(__file__).parent / "canary_1_0"
ADDED_SINCE = {"deepinfer_missing_devices"}
"""Hooks that API 1.0 did not have when this vendor was written."""


class Facts:
    architecture, dtype, raw_config = "C", "float32", {"hidden_size": 8}


@pytest.fixture
def host(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    yield PluginHost(allow=["canary-vendor"])
    for name in [name for name in sys.modules if name.startswith("canary_vendor")]:
        del sys.modules[name]


def test_it_loads_and_uses_every_hook(host):
    record = host.plugins[1]
    assert (record.name, record.distribution, record.version) == ("canary", "canary-vendor", "1.0")
    assert record.state == "loaded"
    assert set(record.hooks) == set(HOOKS) - ADDED_SINCE


def test_its_device_is_found_and_driven(host):
    device = host.find_device()
    assert (device.kind, device.arch, device.features) == ("canary", "1.5", {"sings"})
    runtime = host.device_runtime(device)
    assert (runtime.torch_device, runtime.memory_info()) == ("cpu", (1 << 29, 1 << 30))


def test_every_record_arrives(host):
    device = host.find_device()
    assert host.models()[0].architectures == host.recipes()[0].architectures == ("C",)
    assert (host.commands()[0].name, host.commands()[0].help) == ("sing", "Sing.")
    assert host.logits_stages()[0].load().__name__ == "Thing"
    for kind in (
        QuantSchemeSpec,
        ProposerSpec,
        GrammarBackendSpec,
        KVConnectorSpec,
        StatLoggerSpec,
    ):
        assert host.targets(kind)[-1].name == "canary"  # core's own come first
    assert host.kv_layouts(device)[0].block_sizes == (16,)
    assert host.check_config(EngineConfig.from_flat("m", block_size=16), device) == []
    (issue,) = host.check_config(EngineConfig.from_flat("m", block_size=24), device)
    assert (issue.severity, issue.path) == ("warning", "cache.block_size")
    assert host.failures == []


def test_its_kernels_are_selected_and_right(host):
    device = host.find_device()
    ops = make_op_table(
        host.kernels(device), device=device, policies=host.kernel_policies(device, Facts())
    )
    rms = ops.bind("norm.rms", dtype="float32", features=("residual",), hidden_size=8)
    assert (rms.provider, ops.choices()[0].workspace_bytes) == ("canary.rms", 32)
    (planner,) = ops.planners()
    assert planner.plan_fn(planner.problem, "meta") == ("norm.rms", "meta")
    reference = make_op_table(
        host.kernels(device), device=device, overrides={"*": "torch.reference"}
    ).bind("norm.rms", dtype="float32", features=("residual",), hidden_size=8)
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    for got, want in zip(rms(x, weight, 1e-5, residual), reference(x, weight, 1e-5, residual),
                         strict=True):  # fmt: skip
        torch.testing.assert_close(got, want)


def test_its_refusals_are_heard(host):
    device = host.find_device()
    ops = make_op_table(host.kernels(device), device=device, overrides={"norm.*": "canary.rms"})
    with pytest.raises(UnsupportedOpError, match="hidden_size must be even"):
        ops.bind("norm.rms", dtype="float32", hidden_size=5)
    with pytest.raises(UnsupportedOpError, match="hidden_size 6 is not one of 4, 5, 8"):
        ops.bind("norm.rms", dtype="float32", hidden_size=6)
