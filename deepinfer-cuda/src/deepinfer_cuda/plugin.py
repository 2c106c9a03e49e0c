"""What this plugin has. Light: neither torch nor Triton is imported before a device is wanted."""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    DeviceInfo,
    DeviceRuntime,
    KernelSpec,
    PluginInfo,
    load_target,
)

from deepinfer_cuda.claims import all_kernels
from deepinfer_cuda.probe import KIND, find_devices


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("cuda", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_probe() -> list[DeviceInfo]:
    return find_devices()


@hookimpl
def deepinfer_device_runtime(device: DeviceInfo) -> DeviceRuntime | None:
    if device.kind != KIND:
        return None
    runtime: DeviceRuntime = load_target("deepinfer_cuda.runtime:CudaRuntime")(device)
    return runtime


@hookimpl
def deepinfer_kernels(device: DeviceInfo) -> list[KernelSpec]:
    if device.kind != KIND:
        return []
    return all_kernels()
