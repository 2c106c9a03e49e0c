"""Devices as the rest of the project sees them: what a probe found, and how to drive one.

`DeviceInfo` is plain data and may cross processes. `DeviceRuntime` is the protocol that a backend
implements; core brings one for the CPU. No torch here: tensors and streams are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, found without creating a context on it."""

    kind: str
    """`cpu`, or the name under which a backend serves its hardware."""
    index: int = 0
    arch: str | None = None
    """The backend's own version of the hardware, compared piecewise: `9.0` < `10.0`."""
    memory_bytes: int | None = None
    """Total, not free; None when it cannot be known without a context."""
    uuid: str | None = None
    features: frozenset[str] = frozenset()
    """Hardware facts, in the backend's own words."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a probe may want to know of the process that asks."""

    api_version: str
    core_version: str
    torch_version: str | None
    """Of the installed distribution; torch is not imported for it."""
    python_version: str
    system: str
    """`Linux`, `Darwin`, ..."""
    machine: str
    """`x86_64`, `aarch64`, ..."""


@runtime_checkable
class DeviceEvent(Protocol):
    """A mark in a device's queue of work."""

    def record(self) -> None:
        """Mark the end of the work that has been queued on the current stream."""
        ...

    def query(self) -> bool:
        """Whether the mark was reached. Never blocks."""
        ...

    def wait(self) -> None:
        """Block the host until the mark is reached."""
        ...


class CapturedGraph(Protocol):
    """Work that was recorded once and is launched again as a whole."""

    def replay(self) -> None: ...


@runtime_checkable
class DeviceRuntime(Protocol):
    """How core drives one device. Lives in the worker; methods may create a context."""

    @property
    def kind(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def torch_device(self) -> str:
        """What `torch.device` understands, such as `cpu`."""
        ...

    @property
    def supports_graphs(self) -> bool:
        """Whether `capture` works; without it every step is launched op by op."""
        ...

    @property
    def collectives_backend(self) -> str:
        """The name of the `torch.distributed` backend."""
        ...

    def activate(self) -> None:
        """Make this the current device of the calling thread."""
        ...

    def synchronize(self) -> None:
        """Block until all queued work is done."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes, now."""
        ...

    def create_event(self) -> DeviceEvent: ...

    def stream(self) -> AbstractContextManager[object]:
        """Enter a side stream that starts after the work queued so far."""
        ...

    def pinned_empty(self, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised host memory from which copies to the device need not wait."""
        ...

    def capture(self, function: Callable[[], None]) -> CapturedGraph:
        """Record the work that `function` queues.

        It runs once or more before it is recorded, since models make some tables on first use.

        Raises:
            PlatformError: the device has no graphs.
        """
        ...


@runtime_checkable
class MeasuresMemory(Protocol):
    """What a `DeviceRuntime` may have besides: the pool is then sized by what steps need."""

    def peak_bytes(self, function: Callable[[], None]) -> int:
        """Run it, and say how much more memory than before was in use at most. Blocks."""
        ...
