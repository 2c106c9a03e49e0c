"""Which GPUs there are, asked of the driver's management library: no CUDA context is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pynvml
from deepinfer_core.plugin_api import DeviceInfo, Reason

KIND = "cuda"
VISIBLE = "CUDA_VISIBLE_DEVICES"
INSTANCE = "MIG-"
"""How names of instances begin: parts of a GPU that is shared out (multi-instance GPU)."""


def find_devices() -> list[DeviceInfo]:
    """Every GPU that this process may use, numbered as CUDA numbers them; none without a driver."""
    try:
        with _driver():
            found = _visible(_gpus())
    except pynvml.NVMLError:
        return []
    return [
        DeviceInfo(kind=KIND, index=index, arch=arch, memory_bytes=memory_bytes, uuid=uuid)
        for index, (uuid, arch, memory_bytes) in enumerate(found)
    ]


def why_no_devices() -> list[Reason]:
    """Why `find_devices` finds none; empty where it finds some."""
    try:
        with _driver():
            gpus = _gpus()
            hides = not _visible(gpus)
    except pynvml.NVMLError as error:
        return [
            Reason(
                f"no NVIDIA driver answers ({error}); install one, or give the container the GPU"
            )
        ]
    if not gpus:
        return [Reason("the NVIDIA driver answers, and knows no GPU; look at `nvidia-smi`")]
    if not hides:
        return []
    names = ", ".join(uuid for uuid, _, _ in gpus)
    return [
        Reason(
            f"{VISIBLE}={os.environ[VISIBLE]!r} hides all {len(gpus)} GPUs; unset it, or name "
            f"some of {names}, or their numbers"
        )
    ]


def driver_versions() -> tuple[str, str] | None:
    """Of the driver itself, and the newest CUDA that it runs; None without a driver."""
    try:
        with _driver():
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            return str(pynvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"
    except pynvml.NVMLError:
        return None


@contextmanager
def _driver() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


Found = tuple[str, str, int]
"""UUID, compute capability, bytes of memory."""


def _gpus() -> list[Found]:
    return [_describe(handle) for handle in _handles()]


def _handles() -> list[object]:
    return [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]


def _describe(handle: object, gpu: object | None = None) -> Found:
    """A GPU, or an instance of `gpu`."""
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle if gpu is None else gpu)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return str(pynvml.nvmlDeviceGetUUID(handle)), f"{major}.{minor}", int(memory.total)


def _instances() -> list[Found]:
    found = []
    for gpu in _handles():
        for index in range(_max_instances(gpu)):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            except pynvml.NVMLError_NotFound:
                continue  # fewer instances than the GPU could be shared out into
            found.append(_describe(handle, gpu))
    return found


def _max_instances(gpu: object) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
    except pynvml.NVMLError:
        return 0  # such GPUs cannot be shared out


def _visible(gpus: list[Found]) -> list[Found]:
    """Those that `CUDA_VISIBLE_DEVICES` names, in its order; like CUDA it ends at a wrong entry."""
    names = os.environ.get(VISIBLE)
    if names is None:
        return gpus
    chosen = []
    for name in filter(None, map(str.strip, names.split(","))):
        candidates = _instances() if name.startswith(INSTANCE) else gpus
        matches = [
            device
            for index, device in enumerate(candidates)
            if device[0].startswith(name) or (candidates is gpus and name == str(index))
        ]
        if not matches:
            break
        chosen.append(matches[0])
    return chosen
