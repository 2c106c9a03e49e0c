"""`NpuRuntime`: streams, events, page-locked memory and graphs of one NPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.plugin_api import CapturedGraph, DeviceEvent, DeviceInfo

from deepinfer_ascend.checks import why_no_device, why_no_import
from deepinfer_ascend.soc import KIND, find_soc

WARM_UP_RUNS = 2
"""Of what is captured: operators choose and load their binaries in the first."""


class NpuRuntime:
    """Drives one NPU. Makes its context.

    Raises:
        PlatformError: torch_npu, the toolkit or the driver is missing or does not fit.
    """

    kind = KIND
    supports_graphs = True
    collectives_backend = "hccl"

    def __init__(self, device: DeviceInfo) -> None:
        self._npu = _import_npu()
        if self._npu.device_count() <= device.index:
            raise PlatformError(why_no_device(_version(), None, device.arch))
        self.index = device.index
        self.torch_device = f"{KIND}:{device.index}"
        name = str(self._npu.get_device_name(device.index))
        soc = find_soc(name)
        if device.arch is not None and (soc is None or soc.arch != device.arch):
            raise PlatformError(why_no_device(_version(), name, device.arch))
        self._graph_pool: Any = None

    def activate(self) -> None:
        self._npu.set_device(self.index)

    def synchronize(self) -> None:
        # SYNC: the caller asks for it; never in a step.
        self._npu.synchronize(self.index)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; what torch has reserved and does not use counts as free."""
        free, total = self._npu.mem_get_info(self.index)
        reserved = self._npu.memory_reserved(self.index)
        return int(free + reserved - self._npu.memory_allocated(self.index)), int(total)

    def create_event(self) -> DeviceEvent:
        return _Event(self._npu.Event())

    def stream(self) -> AbstractContextManager[object]:
        entered: AbstractContextManager[object] = self._npu.stream(self._side_stream())
        return entered

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        """Record the work that `function` queues; all graphs share one pool of memory."""
        side = self._side_stream()
        with self._npu.stream(side):
            for _ in range(WARM_UP_RUNS):
                function()
        self._npu.current_stream(self.index).wait_stream(side)
        graph: CapturedGraph = self._npu.NPUGraph()
        if self._graph_pool is None:
            self._graph_pool = self._npu.graph_pool_handle()
        with self._npu.graph(graph, pool=self._graph_pool):
            function()
        return graph

    def _side_stream(self) -> Any:
        """A stream that starts after the work queued so far."""
        side = self._npu.Stream(self.index)
        side.wait_stream(self._npu.current_stream(self.index))
        return side


class _Event:
    def __init__(self, event: Any) -> None:
        self._event = event

    def record(self) -> None:
        self._event.record()

    def query(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        # SYNC: this is the one wait of a step, in `InFlight.result()`.
        self._event.synchronize()


def _import_npu() -> Any:
    """`torch.npu`, which torch_npu brings."""
    try:
        import torch_npu  # optional: its presence alone breaks torch where the toolkit is missing
    except ImportError as error:
        raise PlatformError(why_no_import(error, torch.__version__)) from error
    del torch_npu
    return torch.get_device_module(KIND)


def _version() -> str:
    return version("torch_npu")
