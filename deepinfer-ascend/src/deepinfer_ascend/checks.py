"""What is wrong with a machine or a configuration, in words that a person can act on."""

from __future__ import annotations

from typing import Any

from deepinfer_core.plugin_api import DeviceInfo, Issue

BLOCK_UNIT = 128
"""Tokens: pages of multiples of this are read where they lie; others are gathered first."""
PAGE_SIZES = (128, 256, 384, 512)
"""Those that the operator of attention reads."""
SET_ENV = "/usr/local/Ascend/ascend-toolkit/set_env.sh"


def check_device(config: Any, device: DeviceInfo) -> list[Issue]:
    """What to change before an engine is built for this device."""
    del device
    if config.cache.block_size in PAGE_SIZES:
        return []
    return [
        Issue(
            "warning",
            "cache.block_size",
            f"attention on NPUs reads pages of {BLOCK_UNIT} tokens and multiples where they lie; "
            f"with {config.cache.block_size} it gathers them first, in every layer of every step",
            f"cache.block_size={BLOCK_UNIT}",
        )
    ]


def why_no_import(error: ImportError, torch_version: str) -> str:
    """Why torch_npu cannot be imported."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
        release = ".".join(torch_version.split(".")[:2])
        return f"an NPU needs torch_npu; `pip install 'torch-npu=={release}.*'` fits this torch"
    if ".so" in text:
        return (
            f"torch_npu finds no toolkit (CANN), or one that is too old ({text}); install it, and "
            f"`source {SET_ENV}` before you start"
        )
    return f"torch_npu does not fit this torch {torch_version} ({text}); take the same release"


def why_no_device(torch_npu_version: str, found_soc: str | None, wanted_arch: str | None) -> str:
    """Why an imported torch_npu cannot use an NPU that the probe found.

    Args:
        found_soc: what the toolkit calls the chip; None: it reports no device.
    """
    if found_soc is None:
        return (
            f"torch_npu {torch_npu_version} sees no NPU although its device files are there: the "
            "driver is older than the toolkit, or another process holds the chip; look at "
            "`npu-smi info`"
        )
    return (
        f"the toolkit calls the chip {found_soc}, the bus {wanted_arch}: toolkit and driver are "
        "of different releases; install a pair that belongs together"
    )
