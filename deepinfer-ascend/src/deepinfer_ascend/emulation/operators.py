"""All emulated operators."""

from __future__ import annotations

from deepinfer_core.plugin_api import DeviceInfo

from deepinfer_ascend.emulation import play, registry
from deepinfer_ascend.emulation.kernels import attention, moe, products, rows, streams

MODULES = (attention, moe, products, rows, streams)


def install(device: DeviceInfo) -> None:
    """Define the operators in this process, as this chip has them.

    Raises:
        KeyError: there is no such generation.
    """
    registry.install()
    play.as_soc(str(device.arch), is_wide=play.WIDE in device.features)
