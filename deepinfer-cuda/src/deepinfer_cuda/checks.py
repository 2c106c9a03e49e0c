"""What is wrong with a machine or a configuration, in words that a person can act on."""

from __future__ import annotations

from deepinfer_core.plugin_api import DeviceInfo, Issue

from deepinfer_cuda.claims.claim import OLDEST


def check_arch(device: DeviceInfo) -> list[Issue]:
    """An error for a GPU that no kernel here serves."""
    if device.arch is None or _numbers(device.arch) >= _numbers(OLDEST):
        return []
    return [
        Issue(
            "error",
            "device.kind",
            f"GPU {device.index} has compute capability {device.arch}, kernels need {OLDEST}",
            f"use a GPU of {OLDEST} or newer (name it in CUDA_VISIBLE_DEVICES), or kind=cpu",
        )
    ]


def why_unusable(torch_version: str, built_for: str | None, driver: tuple[str, str] | None) -> str:
    """Why torch cannot use a GPU that the driver reports.

    Args:
        built_for: the version of CUDA; None: this torch was built without it.
        driver: its own version, and the newest CUDA that it runs.
    """
    version, runs = driver or ("unknown", "unknown")
    knows = f"the driver ({version}) runs CUDA up to {runs}"
    if built_for is None:
        return (
            f"this torch ({torch_version}) was built without CUDA; {knows}: install a torch for "
            "that or older, or use kind=cpu"
        )
    if driver is not None and _numbers(built_for) > _numbers(runs):
        return (
            f"this torch ({torch_version}) was built for CUDA {built_for}, but {knows}: update the "
            f"driver, or install a torch for CUDA {runs} or older"
        )
    return (
        f"this torch ({torch_version}, built for CUDA {built_for}) cannot use the GPU although "
        f"{knows}: look at `nvidia-smi`, and whether this process may open /dev/nvidia*"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
