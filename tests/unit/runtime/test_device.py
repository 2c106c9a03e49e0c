"""Core's own runtimes: the CPU keeps the protocol with nothing to wait for."""

import pytest
import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.plugin_api import DeviceEvent, DeviceInfo, DeviceRuntime
from deepinfer_core.runtime.device import AcceleratorRuntime, CpuRuntime


@pytest.fixture
def cpu():
    return CpuRuntime(DeviceInfo(kind="cpu"))


def test_the_cpu_runtime_keeps_the_protocol(cpu):
    assert isinstance(cpu, DeviceRuntime)
    assert torch.device(cpu.torch_device).type == cpu.kind == "cpu"
    assert cpu.collectives_backend in torch.distributed.Backend.backend_list
    cpu.activate()
    cpu.synchronize()
    with cpu.stream():
        tensor = cpu.pinned_empty((2, 3), torch.int32)
    assert (tensor.shape, tensor.dtype) == ((2, 3), torch.int32)


def test_an_event_of_the_cpu_is_reached_at_once(cpu):
    event = cpu.create_event()
    assert isinstance(event, DeviceEvent)
    event.record()
    event.wait()
    assert event.query() is True


def test_free_memory_is_at_most_the_total(cpu):
    free, total = cpu.memory_info()
    assert 0 < free <= total


def test_the_cpu_has_no_graphs_and_says_so(cpu):
    assert not cpu.supports_graphs
    with pytest.raises(PlatformError, match="wanted a captured graph, found none on cpu"):
        cpu.capture(lambda: None)


def test_a_device_that_this_torch_does_not_drive_is_refused():
    with pytest.raises(PlatformError, match=r"wanted a runtime for board:3;.*drives"):
        AcceleratorRuntime(DeviceInfo(kind="board", index=3))


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_the_accelerator_runtime_keeps_the_protocol():
    kind = torch.accelerator.current_accelerator().type
    runtime = AcceleratorRuntime(DeviceInfo(kind=kind))
    assert isinstance(runtime, DeviceRuntime)
    runtime.activate()
    source = runtime.pinned_empty((1 << 20,), torch.float32).fill_(2)
    event = runtime.create_event()
    with runtime.stream():
        result = source.to(runtime.torch_device, non_blocking=True).sum()
        event.record()
    event.wait()
    assert event.query()
    assert result.item() == 2 * (1 << 20)
    free, total = runtime.memory_info()
    assert 0 < free <= total
    runtime.synchronize()
