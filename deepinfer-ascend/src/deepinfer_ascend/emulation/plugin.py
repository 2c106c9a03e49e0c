"""The plugin with emulated devices, on a machine without any.

`deepinfer plugins check deepinfer_ascend.emulation.plugin:on_910b` tries all that is claimed.

The kernels are those of the real plugin, claim by claim. Light: torch is imported with a device.
"""

from __future__ import annotations

import os
from dataclasses import replace

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    DeviceInfo,
    DeviceRuntime,
    Issue,
    KernelSpec,
    PluginInfo,
    load_target,
)

from deepinfer_ascend import plugin
from deepinfer_ascend.claims.portable import PROVIDER
from deepinfer_ascend.soc import KIND, SOCS, Soc

INTERPRET = "TRITON_INTERPRET"
"""Set to 1 when the process starts, it lets Triton run on a CPU: then its kernels are here too."""


class EmulatedPlugin:
    """Finds one NPU of a generation, which computes on the CPU.

    Args:
        is_wide: claim float32 everywhere, as no chip does: see `play.WIDE`.
    """

    def __init__(self, soc: Soc, *, is_wide: bool = False) -> None:
        self.soc, self.is_wide = soc, is_wide

    @hookimpl
    def deepinfer_plugin_info(self) -> PluginInfo:
        info = plugin.deepinfer_plugin_info()
        return PluginInfo(f"{info.name}-emulated", info.version, vendor=info.vendor, api=info.api)

    @hookimpl
    def deepinfer_probe(self) -> list[DeviceInfo]:
        features = self.soc.features | {"emulated"} | ({"float32"} if self.is_wide else set())
        return [DeviceInfo(kind=KIND, arch=self.soc.arch, features=features)]

    @hookimpl
    def deepinfer_device_runtime(self, device: DeviceInfo) -> DeviceRuntime | None:
        if device.kind != KIND:
            return None
        target = "deepinfer_ascend.emulation.runtime:EmulatedRuntime"
        runtime: DeviceRuntime = load_target(target)(device)
        return runtime

    @hookimpl
    def deepinfer_check_config(self, config: object, device: DeviceInfo) -> list[Issue]:
        return plugin.deepinfer_check_config(config, device)

    @hookimpl
    def deepinfer_kernels(self, device: DeviceInfo) -> list[KernelSpec]:
        kernels = plugin.deepinfer_kernels(device)
        if os.environ.get(INTERPRET) != "1":
            kernels = [kernel for kernel in kernels if kernel.provider != PROVIDER]
        return [_widened(kernel) for kernel in kernels] if self.is_wide else kernels


def _widened(kernel: KernelSpec) -> KernelSpec:
    dtypes = tuple(dict.fromkeys(("float32", *kernel.caps.dtypes)))
    return replace(kernel, caps=replace(kernel.caps, dtypes=dtypes))


on_910b, on_910c, on_950 = (EmulatedPlugin(soc) for soc in SOCS)
wide_910b, wide_910c, wide_950 = (EmulatedPlugin(soc, is_wide=True) for soc in SOCS)
