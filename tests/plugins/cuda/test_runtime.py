"""What the runtime asks of torch, which is made up: no GPU is needed."""

import types
import weakref
from contextlib import contextmanager

import pytest
import torch
from deepinfer_core.parallel import launch
from deepinfer_core.parallel.launch import join_mesh
from deepinfer_core.plugin_api import DeviceInfo, DeviceRuntime, MeasuresMemory
from deepinfer_cuda import runtime


class Pool:
    pass


class FakeCuda:
    """The part of `torch.cuda` that a runtime may ask; notes what it was told."""

    def __init__(self):
        self.told = []
        self.memory = types.SimpleNamespace(
            _set_allocator_settings=lambda text: self.told.append(text)
        )
        self.allocated, self.peak = 100, 0

    def is_available(self):
        return True

    def get_device_name(self, index):
        return "a GPU"

    def set_device(self, index):
        self.told.append(f"device {index}")

    def mem_get_info(self, index):
        return 1000, 5000

    def memory_stats(self, index):
        return {"reserved_bytes.all.current": 700, "allocated_bytes.all.current": 600}

    def memory_allocated(self, index):
        return self.allocated

    def reset_peak_memory_stats(self, index):
        self.peak = self.allocated

    def max_memory_reserved(self, index):
        return self.peak

    def current_stream(self, index):
        return self.Stream(index)

    @contextmanager
    def stream(self, side):
        yield

    @contextmanager
    def graph(self, recorded, pool=None):
        recorded.in_pool = pool or Pool()
        yield

    class Stream:
        def __init__(self, index): ...
        def wait_stream(self, other): ...

    class CUDAGraph:
        def pool(self):
            return self.in_pool

    def empty_cache(self):
        self.told.append("empty")

    def synchronize(self, index):
        self.told.append("wait")


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(runtime.torch, "cuda", fake)
    monkeypatch.delattr(runtime.torch._C, "_accelerator_setAllocatorSettings", raising=False)
    for name in runtime.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return fake


def start(index=1):
    return runtime.CudaRuntime(DeviceInfo("cuda", index=index, arch="9.0"))


def test_it_keeps_the_protocol_and_can_measure(cuda):
    driver = start()
    assert isinstance(driver, DeviceRuntime) and isinstance(driver, MeasuresMemory)
    assert (driver.kind, driver.torch_device, driver.supports_graphs) == ("cuda", "cuda:1", True)


def test_memory_that_torch_holds_and_does_not_use_is_free(cuda):
    assert start().memory_info() == (1100, 5000)


def test_the_peak_of_some_work_is_what_it_took_beyond_the_memory_in_use(cuda):
    def work():
        cuda.peak = 350

    assert start().peak_bytes(work) == 250
    assert cuda.told[-3:] == ["empty", "wait", "empty"]
    assert start().peak_bytes(lambda: None) == 0


@pytest.mark.parametrize("variable", [None, *runtime.ALLOCATOR_VARIABLES])
def test_the_allocator_grows_unless_a_person_set_it(cuda, monkeypatch, variable):
    if variable is not None:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    start()
    assert cuda.told == ([] if variable else ["expandable_segments:True"])


def test_graphs_share_the_pool_of_one_that_is_still_held(cuda):
    """torch ends the process's use of a pool with the last graph in it."""
    driver, calls = start(), []
    first, second = (driver.capture(lambda: calls.append(1)) for _ in range(2))
    assert len(calls) == 2 * (runtime.WARM_UP_RUNS + 1)
    assert first.pool() is second.pool()
    gone = weakref.ref(first.pool())
    del first
    assert driver.capture(list).pool() is second.pool()
    del second
    assert gone() is None
    assert driver.capture(list).pool() is not None


def test_a_newer_torch_is_told_by_its_own_name(cuda, monkeypatch):
    told = []
    name = "_accelerator_setAllocatorSettings"
    monkeypatch.setattr(runtime.torch._C, name, told.append, raising=False)
    start()
    assert (told, cuda.told) == (["expandable_segments:True"], [])


def test_ranks_meet_over_nccl_each_on_its_gpu(cuda, monkeypatch):
    made = {}
    monkeypatch.setattr(launch.dist, "is_backend_available", lambda name: name == "nccl")
    monkeypatch.setattr(
        launch.dist,
        "init_process_group",
        lambda backend, **options: made.update(options, name=backend),
    )
    join_mesh(start(index=3), rank=2, num_ranks=4)
    assert (made["name"], made["device_id"]) == ("nccl", torch.device("cuda:3"))
    assert cuda.told[-1] == "device 3"
