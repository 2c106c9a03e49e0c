"""Core's own device runtimes: the CPU, and whatever `torch.accelerator` drives.

A plugin replaces the second for its device, through `deepinfer_device_runtime`. Knows no model
and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch

from deepinfer_core.errors import PlatformError
from deepinfer_core.host_machine import memory_info
from deepinfer_core.plugin_api import CapturedGraph, DeviceEvent, DeviceInfo


class CpuEvent:
    """Work on the CPU is done when its call returns, so every mark is already reached."""

    def record(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


class CpuRuntime:
    """Drives the CPU: one implicit stream that is always in step with the host."""

    kind = "cpu"
    torch_device = "cpu"
    supports_graphs = False
    collectives_backend = "gloo"

    def __init__(self, device: DeviceInfo) -> None:
        self.index = device.index

    def activate(self) -> None:
        """Do nothing: there is only one CPU."""

    def synchronize(self) -> None:
        """Return at once."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes, within the limits of a container."""
        return memory_info()

    def create_event(self) -> DeviceEvent:
        return CpuEvent()

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        """Ordinary memory: there is no other side to pin it for."""
        return torch.empty(tuple(shape), dtype=dtype)

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        raise _no_graphs(self.torch_device)


class AcceleratorRuntime:
    """Drives a device that this torch knows by the kind's name, without graphs.

    Raises:
        PlatformError: torch knows no device of this kind, or cannot use it.
    """

    supports_graphs = False

    def __init__(self, device: DeviceInfo) -> None:
        self.kind, self.index = device.kind, device.index
        self.torch_device = f"{device.kind}:{device.index}"
        current = torch.accelerator.current_accelerator(check_available=True)
        found = current.type if current is not None else "cpu only"
        if found != device.kind:
            raise PlatformError(
                f"wanted a runtime for {self.torch_device}; its plugin brings none and this torch "
                f"({torch.__version__}) drives {found}; install a torch built for the device"
            )
        self.collectives_backend = torch.distributed.get_default_backend_for_device(device.kind)

    def activate(self) -> None:
        torch.accelerator.set_device_index(self.index)

    def synchronize(self) -> None:
        # SYNC: the caller asks for it; never in a step.
        torch.accelerator.synchronize(self.index)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device. Creates its context."""
        free, total = torch.get_device_module(self.kind).mem_get_info(self.index)
        return int(free), int(total)

    def create_event(self) -> DeviceEvent:
        return _TorchEvent(self.torch_device)

    def stream(self) -> AbstractContextManager[object]:
        side = torch.Stream(device=self.torch_device)
        side.wait_stream(torch.accelerator.current_stream(self.index))
        entered: AbstractContextManager[object] = side
        return entered

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        raise _no_graphs(self.torch_device)


class _TorchEvent:
    def __init__(self, torch_device: str) -> None:
        self._event = torch.Event(device=torch_device)

    def record(self) -> None:
        self._event.record()

    def query(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        # SYNC: this is the one wait of a step, in `InFlight.result()`.
        self._event.synchronize()


def _no_graphs(torch_device: str) -> PlatformError:
    return PlatformError(f"wanted a captured graph, found none on {torch_device}; run op by op")
