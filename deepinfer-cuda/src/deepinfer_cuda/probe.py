"""Which GPUs there are, asked of the driver's management library: no CUDA context is made."""

from __future__ import annotations

import os

import pynvml
from deepinfer_core.plugin_api import DeviceInfo

KIND = "cuda"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def find_devices() -> list[DeviceInfo]:
    """Every GPU that this process may use, numbered as CUDA numbers them; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        found = [_describe(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return [
        DeviceInfo(kind=KIND, index=index, arch=arch, memory_bytes=memory_bytes, uuid=uuid)
        for index, (uuid, arch, memory_bytes) in enumerate(_visible(found))
    ]


Found = tuple[str, str, int]
"""UUID, compute capability, bytes of memory."""


def _describe(handle: object) -> Found:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return str(pynvml.nvmlDeviceGetUUID(handle)), f"{major}.{minor}", int(memory.total)


def _visible(found: list[Found]) -> list[Found]:
    """Those that `CUDA_VISIBLE_DEVICES` names, in its order; like CUDA it ends at a wrong entry."""
    names = os.environ.get(VISIBLE)
    if names is None:
        return found
    chosen = []
    for name in filter(None, map(str.strip, names.split(","))):
        matches = [
            device
            for index, device in enumerate(found)
            if name == str(index) or device[0].startswith(name)
        ]
        if not matches:
            break
        chosen.append(matches[0])
    return chosen
