"""What a person is told where there is no GPU that can be used, and whether it helps."""

import types

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import choose_device
from deepinfer_core.errors import ConfigError, PlatformError
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.plugins import PluginHost
from deepinfer_cuda import plugin, probe, runtime
from deepinfer_cuda.checks import check_arch, why_unusable
from fake_driver import FakeDriver

HOPPER = ("GPU-aa11", (9, 0), 141)
TURING = ("GPU-cc33", (7, 5), 16)
INSTANCES = {"GPU-aa11": {0: ("MIG-11", 17), 3: ("MIG-12", 34)}}


@pytest.fixture
def driver(monkeypatch):
    """driver(GPUS, VISIBLE, ...): such a driver answers, and that is in the environment."""

    def install(gpus, visible=None, **fields):
        fake = FakeDriver(gpus, **fields)
        monkeypatch.setattr(probe, "pynvml", fake)
        monkeypatch.delenv(probe.VISIBLE, raising=False)
        if visible is not None:
            monkeypatch.setenv(probe.VISIBLE, visible)
        return fake

    return install


@pytest.fixture
def choose():
    """choose(kind): what an engine does first."""
    host = PluginHost(load_entry_points=False)
    host.register(plugin, name="cuda")

    def choose(kind):
        return choose_device(EngineConfig.from_flat("model", kind=kind), host)

    return choose


@pytest.mark.parametrize(
    ("gpus", "visible", "words"),
    [
        (None, None, ["no NVIDIA driver answers (Driver Not Loaded)", "container"]),
        ([], None, ["knows no GPU", "nvidia-smi"]),
        ([HOPPER], "", ["CUDA_VISIBLE_DEVICES='' hides all 1 GPUs", "GPU-aa11"]),
        ([HOPPER, TURING], "2", ["CUDA_VISIBLE_DEVICES='2' hides all 2", "GPU-aa11, GPU-cc33"]),
        ([HOPPER], "MIG-12", ["CUDA_VISIBLE_DEVICES='MIG-12' hides all 1 GPUs"]),
    ],
    ids=["no driver", "no GPU", "none visible", "wrong number", "no such instance"],
)
def test_no_gpu(driver, choose, gpus, visible, words):
    fake = driver(gpus, visible)
    with pytest.raises(PlatformError, match="wanted device cuda:0, found cpu:0") as caught:
        choose("cuda")
    for word in words:
        assert word in str(caught.value)
    assert fake.num_open == 0


def test_the_reason_is_no_error_where_nobody_wants_a_gpu(driver, choose):
    driver(None)
    device, _ = choose("auto")
    assert device.kind == "cpu"


def test_nothing_is_missing_where_a_gpu_is_found(driver):
    driver([HOPPER])
    assert plugin.deepinfer_missing_devices() == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-12", [("MIG-12", "9.0", 34)]),
        ("MIG-12,MIG-11", [("MIG-12", "9.0", 34), ("MIG-11", "9.0", 17)]),
        ("1", [("GPU-cc33", "7.5", 16)]),
    ],
)
def test_an_instance_of_a_gpu_is_found_by_its_name(driver, visible, expected):
    driver([HOPPER, TURING], visible, instances=INSTANCES)
    found = plugin.deepinfer_probe()
    assert [(device.uuid, device.arch, device.memory_bytes) for device in found] == expected
    assert [device.index for device in found] == list(range(len(found)))


def test_a_gpu_that_is_too_old(driver, choose):
    driver([TURING])
    with pytest.raises(ConfigError, match=r"GPU 0 has compute capability 7\.5.*8\.0") as caught:
        choose("auto")
    assert "kind=cpu" in str(caught.value)
    assert check_arch(DeviceInfo("cuda", arch="8.0")) == check_arch(DeviceInfo("cuda")) == []
    assert check_arch(DeviceInfo("cuda", arch="12.0")) == []


@pytest.mark.parametrize(
    ("built_for", "versions", "words"),
    [
        ("13.0", ("525.60.13", 12000), ["CUDA 13.0", "(525.60.13) runs CUDA up to 12.0", "update"]),
        (None, ("580.95.05", 13000), ["built without CUDA", "up to 13.0", "kind=cpu"]),
        ("13.0", ("580.95.05", 13020), ["cannot use the GPU although", "up to 13.2", "/dev/"]),
    ],
    ids=["driver too old", "torch for CPUs", "neither"],
)
def test_a_driver_that_torch_cannot_use(driver, choose, monkeypatch, built_for, versions, words):
    driver([HOPPER], versions=versions)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    version = types.SimpleNamespace(cuda=built_for)
    monkeypatch.setattr(runtime.torch, "version", version)
    with pytest.raises(PlatformError) as caught:
        choose("cuda")
    for word in words:
        assert word in str(caught.value)


def test_a_driver_that_is_gone_by_then(driver):
    driver(None)
    assert probe.driver_versions() is None
    assert "driver (unknown)" in why_unusable("2.11.0", "13.0", None)
