"""Faults that users of other engines reported about plugins; each test names its row."""

import dataclasses
import inspect

import pytest
from deepinfer_core import hookimpl, plugin_api
from deepinfer_core.errors import PluginError
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import (
    Caps,
    DeviceInfo,
    KernelSpec,
    PluginInfo,
    hookspecs,
)
from deepinfer_core.plugin_checks import HOOKS
from deepinfer_core.plugins import PluginHost


class Vendor:
    """A plugin that serves hardware that core has never heard of, with one kernel."""

    def __init__(self, api=">=1.0,<2"):
        self.api = api

    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("unheard", "1.0", "Unheard", api=self.api)

    @hookimpl
    def deepinfer_probe(self):
        return [DeviceInfo(kind="unheard_of", arch="7")]

    @hookimpl
    def deepinfer_kernels(self, device):
        caps = Caps(device_kinds=("unheard_of",), features=frozenset({"residual"}))
        target = "deepinfer_core.ops.reference.norm:rms"
        return [KernelSpec("norm.rms@1", "unheard.rms", target, caps)]


def test_b2_a_vendor_replaces_one_op_and_gets_the_others_from_core():
    """B2: vendors had to patch ops, since there was no dispatch by capability and priority."""
    host = PluginHost(load_entry_points=False)
    host.register(Vendor(), name="unheard")
    device = host.find_device()
    ops = make_op_table(host.kernels(device), device=device)
    assert ops.bind("norm.rms", dtype="float32", features=("residual",)).provider == "unheard.rms"
    # Not claimed, so not served: the reference takes over, and says why.
    assert ops.bind("norm.rms", dtype="bfloat16").provider == "torch.reference"
    assert ops.bind("act.silu_mul", dtype="float32").provider == "torch.reference"
    assert dict(ops.choices()[1].rejected)["unheard.rms"].startswith("dtype bfloat16")


def test_b4_what_crosses_the_seam_is_frozen_and_hooks_may_grow():
    """B4: releases removed constructor arguments, changed return types and renamed fields."""
    records = [value for name in plugin_api.__all__
               if dataclasses.is_dataclass(value := getattr(plugin_api, name))]  # fmt: skip
    assert len(records) > 15
    for record in records:
        assert record.__dataclass_params__.frozen, record.__name__
    # A hook that takes nothing keeps working whatever arguments the hook will have.
    assert "device" in inspect.signature(hookspecs.deepinfer_kernels).parameters
    host = PluginHost(load_entry_points=False)
    plain = type("Plain", (Vendor,), {"deepinfer_kernels": hookimpl(_no_arguments)})
    host.register(plain(), name="plain")
    assert host.kernels(DeviceInfo(kind="cpu"))[-1].provider == "plain.rms"


def _no_arguments(self):
    return [KernelSpec("norm.rms@1", "plain.rms", "m:f")]


def test_b5_an_unknown_platform_is_the_plugins_to_answer_for():
    """B5: core's allow list refused platforms that it did not know."""
    host = PluginHost(load_entry_points=False)
    host.register(Vendor(), name="unheard")
    assert host.find_device("unheard_of").arch == "7"
    assert host.find_device("auto").kind == "unheard_of"


def test_b7_and_g15_plugins_cannot_replace_schedulers_or_engines():
    """B7, G15: overridden schedulers drifted from core and silently ignored new flags."""
    assert not [hook for hook in HOOKS if "scheduler" in hook or "engine" in hook]
    host = PluginHost(load_entry_points=False)
    override = type("Override", (Vendor,), {"deepinfer_scheduler": hookimpl(lambda self: [])})
    with pytest.raises(PluginError, match="unknown hook deepinfer_scheduler"):
        host.register(override(), name="override")


def test_t13_a_plugin_newer_than_core_is_told_so_with_both_versions():
    """T13: a newer plugin than core failed with "invalid tool call parser"."""
    host = PluginHost(load_entry_points=False)
    with pytest.raises(PluginError, match=r">=2.*serves 1\.0; upgrade deepinfer-core"):
        host.register(Vendor(api=">=2"), name="unheard")
