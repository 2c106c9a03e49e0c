"""`EmulatedRuntime`: a device that says it is an NPU, and computes on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.plugin_api import CapturedGraph, DeviceEvent, DeviceInfo

from deepinfer_ascend.emulation import operators
from deepinfer_ascend.soc import KIND


class EmulatedRuntime:
    """Work is done when its call returns. Defines the vendor's operators in this process."""

    kind = KIND
    torch_device = "cpu"
    supports_graphs = False
    collectives_backend = "gloo"

    def __init__(self, device: DeviceInfo) -> None:
        self.index = device.index
        operators.install(device)

    def activate(self) -> None:
        """Do nothing: there is only one CPU."""

    def synchronize(self) -> None:
        """Return at once."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the host."""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        free, total = (os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
        return free * page_bytes, total * page_bytes

    def create_event(self) -> DeviceEvent:
        return _Event()

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        raise PlatformError("wanted a captured graph, found an emulated NPU; run op by op")


class _Event:
    def record(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""
