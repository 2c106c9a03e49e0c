"""What this plugin has. Light: torch and torch_npu are imported when a device is wanted."""

from __future__ import annotations

from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    DeviceInfo,
    DeviceRuntime,
    Issue,
    KernelSpec,
    KVLayoutSpec,
    PluginInfo,
    Reason,
    load_target,
)

from deepinfer_ascend.checks import PAGE_SIZES, check_device
from deepinfer_ascend.claims import all_kernels
from deepinfer_ascend.claims.claim import HALVES
from deepinfer_ascend.probe import find_devices, why_no_devices
from deepinfer_ascend.soc import KIND, soc_of


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("ascend", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_probe() -> list[DeviceInfo]:
    return find_devices()


@hookimpl
def deepinfer_missing_devices() -> list[Reason]:
    return why_no_devices()


@hookimpl
def deepinfer_check_config(config: Any, device: DeviceInfo) -> list[Issue]:
    return check_device(config, device) if device.kind == KIND else []


@hookimpl
def deepinfer_device_runtime(device: DeviceInfo) -> DeviceRuntime | None:
    if device.kind != KIND:
        return None
    runtime: DeviceRuntime = load_target("deepinfer_ascend.runtime:NpuRuntime")(device)
    return runtime


@hookimpl
def deepinfer_kv_layouts(device: DeviceInfo) -> list[KVLayoutSpec]:
    if device.kind != KIND:
        return []
    return [KVLayoutSpec("paged", ("full", "window"), PAGE_SIZES, HALVES)]


@hookimpl
def deepinfer_kernels(device: DeviceInfo) -> list[KernelSpec]:
    if device.kind != KIND or device.arch is None:
        return []
    return all_kernels(soc_of(device.arch))
