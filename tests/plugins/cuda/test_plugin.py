"""What the plugin finds and claims, told by a driver that is made up."""

import json
from functools import partial

import pytest
from deepinfer_core.errors import UnsupportedOpError
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_cuda import plugin, probe
from fake_driver import FakeDriver

GPUS = [("GPU-aa11", (9, 0), 141), ("GPU-ab22", (8, 0), 80), ("GPU-cc33", (7, 5), 16)]
DENSE = {
    *("norm.rms", "act.silu_mul", "rope.apply", "kv.store", "attn.qkv", "attn.paged"),
    *("gemm.dense", "gemm.gated"),
}
"""What a dense model needs."""


@pytest.fixture
def find(monkeypatch):
    """find(VISIBLE): the UUIDs found, in order, with that in the environment."""

    def find(visible=None, gpus=GPUS):
        driver = FakeDriver(gpus)
        monkeypatch.setattr(probe, "pynvml", driver)
        monkeypatch.delenv(probe.VISIBLE, raising=False)
        if visible is not None:
            monkeypatch.setenv(probe.VISIBLE, visible)
        devices = plugin.deepinfer_probe()
        assert driver.num_open == 0
        assert [device.index for device in devices] == list(range(len(devices)))
        return devices

    return find


def uuids(devices):
    return [device.uuid for device in devices]


def test_no_driver_no_devices(find):
    assert find(gpus=None) == []


def test_every_gpu_with_what_the_driver_says(find):
    first = DeviceInfo(kind="cuda", index=0, arch="9.0", memory_bytes=141, uuid="GPU-aa11")
    assert find()[0] == first
    assert uuids(find()) == ["GPU-aa11", "GPU-ab22", "GPU-cc33"]
    assert [device.arch for device in find()] == ["9.0", "8.0", "7.5"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        ("GPU-ab", ["GPU-ab22"]),
        ("GPU-cc33, 1", ["GPU-cc33", "GPU-ab22"]),
        ("1,7,0", ["GPU-ab22"]),
        ("-1,0", []),
        ("", []),
    ],
    ids=["order", "uuid prefix", "mixed", "wrong entry ends it", "none", "empty"],
)
def test_the_environment_chooses_and_orders(find, visible, expected):
    assert uuids(find(visible)) == expected


def test_a_plugin_is_light(run_program):
    code = """
import json, sys
from deepinfer_cuda import plugin
from deepinfer_core.plugin_api import DeviceInfo
plugin.deepinfer_plugin_info(), plugin.deepinfer_probe()
plugin.deepinfer_kernels(DeviceInfo("cuda", arch="9.0"))
print(json.dumps([name for name in ("torch", "triton") if name in sys.modules]))
"""
    assert json.loads(run_program("-c", code)) == []


def test_kernels_are_for_its_own_devices():
    assert plugin.deepinfer_kernels(DeviceInfo("cpu")) == []
    assert plugin.deepinfer_device_runtime(DeviceInfo("cpu")) is None
    kernels = plugin.deepinfer_kernels(DeviceInfo("cuda", arch="9.0"))
    assert {kernel.op.partition("@")[0] for kernel in kernels} >= DENSE
    assert {kernel.caps.device_kinds for kernel in kernels} == {("cuda",)}
    paged = next(kernel for kernel in kernels if kernel.op == "attn.paged@1")
    assert "batch_invariant" not in paged.caps.features


@pytest.mark.parametrize(("arch", "knows_codes"), [("8.6", False), ("8.9", True), ("10.0", True)])
def test_rows_that_are_records_are_for_gpus_that_know_their_codes(arch, knows_codes):
    device = DeviceInfo("cuda", arch=arch)
    kernels = plugin.deepinfer_kernels(device)
    bind = partial(make_op_table(kernels, device=device).bind, "index.select", dtype="bfloat16")
    assert bind().provider == "cuda.triton" + ("" if knows_codes else "_plain")
    if knows_codes:
        assert bind(scheme="132", features=("records",)).provider == "cuda.triton"
        assert not any(kernel.provider.endswith("_plain") for kernel in kernels)
    else:
        with pytest.raises(UnsupportedOpError, match="records"):
            bind(scheme="132", features=("records",))


@pytest.mark.parametrize("arch", ["8.0", "9.0", "10.0", "12.0"])
def test_newer_gpus_are_served(arch):
    device = DeviceInfo("cuda", arch=arch)
    ops = make_op_table(plugin.deepinfer_kernels(device), device=device)
    assert ops.bind("norm.rms", dtype="bfloat16").provider == "cuda.triton"


def test_an_old_gpu_is_refused_with_the_reason():
    device = DeviceInfo("cuda", arch="7.5")
    ops = make_op_table(plugin.deepinfer_kernels(device), device=device)
    with pytest.raises(UnsupportedOpError, match=r"cuda\.triton.*7\.5.*8\.0|8\.0.*7\.5"):
        ops.bind("norm.rms", dtype="bfloat16")
