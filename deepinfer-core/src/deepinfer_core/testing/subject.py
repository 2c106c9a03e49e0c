"""What the conformance suite is run against: one plugin's kernels on one device."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deepinfer_core.errors import PluginError
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.ops.registry import op_name
from deepinfer_core.ops.spec import OpSpec
from deepinfer_core.plugin_api import DeviceInfo, DeviceRuntime, KernelSpec, load_target
from deepinfer_core.plugin_discovery import PluginRecord
from deepinfer_core.plugins import PluginHost

BUILTIN_NAMES = ("builtin", "core", "deepinfer-core")


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin's kernels on a device."""

    record: PluginRecord
    device: DeviceInfo
    runtime: DeviceRuntime
    kernels: Sequence[KernelSpec]
    host: PluginHost
    source: str | None = None
    """What a fresh process calls the plugin; None if only this process knows it."""

    @property
    def name(self) -> str:
        return self.record.name


def find_subject(name: str, device_kind: str | None = None) -> Subject:
    """Load a plugin and collect what it claims.

    Args:
        name: entry point or distribution; `builtin` for core's own kernels; or a dotted module or
            `module:attribute` of a plugin that is not installed.
        device_kind: default: the first device that the plugin itself finds, else the CPU.

    Raises:
        PluginError: the plugin is not installed or fails.
        PlatformError: there is no such device.
    """
    host, record = load_plugin(name)
    return replace(make_subject(host, record, device_kind), source=name)


def load_plugin(name: str) -> tuple[PluginHost, PluginRecord]:
    """A host that has loaded this plugin and none besides core's; names as for `find_subject`.

    Raises:
        PluginError: it is not installed or fails.
    """
    if name in BUILTIN_NAMES:
        host = PluginHost(load_entry_points=False)
        return host, host.plugins[0]
    if ":" in name or "." in name:
        start = time.perf_counter()
        plugin = load_target(name) if ":" in name else importlib.import_module(name)
        import_s = time.perf_counter() - start
        host = PluginHost(load_entry_points=False)
        record = host.register(plugin, name=name)
        record.import_s = import_s
        return host, record
    host = PluginHost(allow=[name])
    return host, next(record for record in host.plugins if record.matches([name]))


def make_subject(host: PluginHost, record: PluginRecord, device_kind: str | None = None) -> Subject:
    """Collect what a loaded plugin claims.

    Raises:
        PluginError: it fails to say.
        PlatformError: there is no such device.
    """
    found = host.devices()
    own = record.devices or tuple(found[:1])
    device = own[0] if device_kind is None else host.find_device(device_kind)
    builtin = {(k.op, k.provider) for k in _builtin_kernels(device)}
    kernels = host.kernels(device)
    if not record.is_builtin:
        kernels = [k for k in kernels if (k.op, k.provider) not in builtin]
    return Subject(record, device, host.device_runtime(device), kernels, host)


def spec_of(kernel: KernelSpec) -> OpSpec:
    """The spec of the op that a kernel claims.

    Raises:
        PluginError: there is no such op.
    """
    name = op_name(kernel.op)
    if name not in OP_SPECS:
        raise PluginError(f"kernel {kernel.provider} claims op {kernel.op}, which does not exist")
    return OP_SPECS[name]


def _builtin_kernels(device: DeviceInfo) -> list[KernelSpec]:
    return PluginHost(load_entry_points=False).kernels(device)
