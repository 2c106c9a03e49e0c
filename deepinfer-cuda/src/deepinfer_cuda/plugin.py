"""What this plugin has. Light: neither torch nor Triton is imported before a device is wanted."""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    DeviceInfo,
    DeviceRuntime,
    Issue,
    KernelSpec,
    PluginInfo,
    Reason,
    load_target,
)

from deepinfer_cuda.checks import check_arch
from deepinfer_cuda.claims import all_kernels
from deepinfer_cuda.probe import KIND, find_devices, why_no_devices


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("cuda", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_probe() -> list[DeviceInfo]:
    return find_devices()


@hookimpl
def deepinfer_missing_devices() -> list[Reason]:
    return why_no_devices()


@hookimpl
def deepinfer_check_config(device: DeviceInfo) -> list[Issue]:
    return check_arch(device) if device.kind == KIND else []


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
    return [kernel for kernel in all_kernels() if not _is_for_older(kernel, device)]


def _is_for_older(kernel: KernelSpec, device: DeviceInfo) -> bool:
    """Whether it stands in on older devices for a kernel that this one has."""
    newest = kernel.caps.arch[1]
    return newest is not None and device.arch is not None and _parts(device.arch) > _parts(newest)


def _parts(arch: str) -> list[int]:
    return [int(part) for part in arch.split(".")]
