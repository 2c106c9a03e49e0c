"""`CudaRuntime`: streams, events, page-locked memory and graphs of one GPU."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.plugin_api import CapturedGraph, DeviceEvent, DeviceInfo

from deepinfer_cuda.checks import why_unusable
from deepinfer_cuda.probe import driver_versions
from deepinfer_cuda.tuned import use_device

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
WARM_UP_RUNS = 2
"""Of what is captured: libraries and kernels make their handles and code in the first."""


class CudaRuntime:
    """Drives one GPU. Makes its context.

    Raises:
        PlatformError: this torch cannot use it.
    """

    kind = "cuda"
    supports_graphs = True
    collectives_backend = "nccl"

    def __init__(self, device: DeviceInfo) -> None:
        if not torch.cuda.is_available():
            raise PlatformError(
                why_unusable(torch.__version__, torch.version.cuda, driver_versions())
            )
        set_allocator()
        use_device(torch.cuda.get_device_name(device.index))
        self.index = device.index
        self.torch_device = f"cuda:{device.index}"
        self._graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()

    def activate(self) -> None:
        torch.cuda.set_device(self.index)

    def synchronize(self) -> None:
        # SYNC: the caller asks for it; never in a step.
        torch.cuda.synchronize(self.index)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; what torch has reserved and does not use counts as free."""
        free, total = torch.cuda.mem_get_info(self.index)
        stats = torch.cuda.memory_stats(self.index)
        unused = stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"]
        return int(free + unused), int(total)

    def peak_bytes(self, function: Callable[[], None]) -> int:
        """See `MeasuresMemory`. Memory that torch keeps for later is given back before and after,
        as it may be of no use to what is allocated next.
        """
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.index)
        before = torch.cuda.memory_allocated(self.index)
        function()
        # SYNC: nothing is served yet.
        torch.cuda.synchronize(self.index)
        peak = torch.cuda.max_memory_reserved(self.index)
        torch.cuda.empty_cache()
        return max(0, peak - before)

    def create_event(self) -> DeviceEvent:
        return _Event()

    def stream(self) -> AbstractContextManager[object]:
        side: Any = torch.cuda.Stream(self.index)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.index))
        entered: AbstractContextManager[object] = torch.cuda.stream(side)
        return entered

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        """Record the work that `function` queues; graphs share one pool of memory.

        A pool is gone with the last graph in it, so it is the pool of one that is still held.
        """
        side: Any = torch.cuda.Stream(self.index)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.index))
        try:
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_RUNS):
                    function()
        finally:
            torch.cuda.current_stream(self.index).wait_stream(side)
        graph = _Graph()
        earlier = next(iter(self._graphs), None)
        with torch.cuda.graph(graph.recorded, pool=None if earlier is None else earlier.pool()):
            function()
        self._graphs.add(graph)
        return graph


class _Graph:
    """Recorded work, which can be held weakly."""

    def __init__(self) -> None:
        self.recorded = torch.cuda.CUDAGraph()

    def replay(self) -> None:
        self.recorded.replay()

    def pool(self) -> Any:
        return self.recorded.pool()


def set_allocator() -> None:
    """Let torch grow the memory that it holds, as chunks of all lengths would leave gaps in it.

    Only before anything is allocated, and not where a person has set something.
    """
    if any(name in os.environ for name in ALLOCATOR_VARIABLES):
        return
    newer: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    set_settings = newer or torch.cuda.memory._set_allocator_settings
    set_settings("expandable_segments:True")


class _Event:
    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record()

    def query(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        # SYNC: this is the one wait of a step, in `InFlight.result()`.
        self._event.synchronize()
