"""What `deepinfer doctor` finds out, each finding with its remedy. Prints nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from deepinfer_core import __version__
from deepinfer_core.errors import PluginError
from deepinfer_core.host_machine import cpu_features, cpu_name, memory_info
from deepinfer_core.plugin_api import API_VERSION, DeviceInfo, load_target
from deepinfer_core.plugin_checks import TARGET_HOOKS
from deepinfer_core.plugins import PluginHost

EXTRAS = {
    "hub": ("huggingface-hub", "models by hub id, such as owner/name"),
    "plot": ("matplotlib", "plots of `deepinfer bench`"),
    "structured": ("xgrammar", "answers of a given form, such as a JSON schema"),
    "test": ("pytest", "`deepinfer plugins check`"),
}
"""Extra of deepinfer-core -> (its distribution, what it is for)."""

OLDEST_PYTHON = (3, 11)
GIB = 2**30
SMALL_MEMORY_BYTES = 2 * GIB
"""Below this, not even a model of half a billion parameters in bfloat16 runs well."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, and what to do about it if it is a problem."""

    name: str
    status: Literal["ok", "note", "error"]
    value: str
    remedy: str = ""


def examine(host_factory: Callable[[], PluginHost] = PluginHost) -> list[Finding]:
    """Look at everything that an engine on this machine depends on. Loads no model."""
    host = host_factory()
    devices = ask_everything(host)
    return [
        _python(),
        Finding("deepinfer-core", "ok", f"{__version__}, plugin API {API_VERSION}"),
        _torch(),
        _cpu(),
        _threads(),
        _memory(),
        *_plugins(host),
        *(Finding("device", "ok", _device(device)) for device in devices),
        *(Finding("device", "note", reason.text) for reason in host.missing_devices()),
        *(_extra(name) for name in EXTRAS),
    ]


def ask_everything(host: PluginHost) -> list[DeviceInfo]:
    """Ask plugins for all that needs no model, so that `host.plugins` tells every failure.

    Returns:
        The devices of those that work.
    """
    for record_type in TARGET_HOOKS:
        _ask(partial(host.targets, record_type))
    _ask(host.devices)
    for device in host.devices():
        _ask(partial(host.kernels, device))
        _ask(partial(host.kv_layouts, device))
    return host.devices()


def _ask(question: Callable[[], object]) -> None:
    """Ask until nobody fails. What would end an engine is one failure of many here."""
    try:
        question()
    except PluginError:
        _ask(question)  # whoever failed is not asked again


def _python() -> Finding:
    version = f"{platform.python_version()} on {platform.platform()}"
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("python", "ok", version)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("python", "error", version, f"use Python {oldest} or newer")


def _torch() -> Finding:
    try:
        version = load_target("torch:__version__")
    # A broken build of torch fails in many ways, and telling so is the point of this command.
    except Exception as error:
        return Finding("torch", "error", f"{type(error).__name__}: {error}", "pip install torch")
    return Finding("torch", "ok", str(version))


def _cpu() -> Finding:
    features = sorted(cpu_features())
    value = f"{cpu_name()}: {', '.join(features) or 'features unknown'}"
    if not features or any("bf16" in feature for feature in features):
        return Finding("cpu", "ok", value)
    return Finding("cpu", "note", value, "no bfloat16 arithmetic: --dtype float32 is faster here")


def _threads() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS")
    value = f"{usable} usable cores" + (f", OMP_NUM_THREADS={limit}" if limit else "")
    if limit and limit.isdigit() and usable and int(limit) > usable:
        return Finding("threads", "note", value, "more threads than cores slow each other down")
    return Finding("threads", "ok", value)


def _memory() -> Finding:
    free, total = memory_info()
    value = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free >= SMALL_MEMORY_BYTES:
        return Finding("memory", "ok", value)
    return Finding("memory", "note", value, "close other programs, or lower --memory-fraction")


def _plugins(host: PluginHost) -> Iterator[Finding]:
    for record in host.plugins:
        value = f"{record.name} ({record.distribution} {record.version}): {record.state}"
        if record.failure:
            remedy = f"repair it or leave it out with --block {record.name}"
            yield Finding("plugin", "error", f"{value}: {record.failure}", remedy)
        elif record.is_slow:
            value = f"{value}, {record.import_s:.1f} s to import"
            yield Finding("plugin", "note", value, "ask its vendor for a light entry module")
        else:
            yield Finding("plugin", "ok", value)


def _device(device: DeviceInfo) -> str:
    memory = f", {device.memory_bytes / GIB:.1f} GiB" if device.memory_bytes else ""
    return f"{device.kind}:{device.index} {device.arch or ''}{memory}"


def _extra(name: str) -> Finding:
    distribution, purpose = EXTRAS[name]
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        value = f"{distribution} is not installed: no {purpose}"
        return Finding(f"extra {name}", "note", value, f"pip install 'deepinfer-core[{name}]'")
    return Finding(f"extra {name}", "ok", f"{distribution} {version}: {purpose}")
