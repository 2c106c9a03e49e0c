"""What the plugin finds, claims and says, on machines that are made up."""

import json
import types
from pathlib import Path

import pytest
from deepinfer_ascend import checks, plugin, probe, runtime
from deepinfer_ascend.emulation import plugin as emulation
from deepinfer_ascend.soc import SOCS, find_soc
from deepinfer_core.errors import PlatformError, UnsupportedOpError
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import DeviceInfo

SMI = """\
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	0                              0                              0                              Ascend 910B3
	0                              1                              -                              Mcu
	1                              0                              1                              Ascend 910B3
"""  # noqa: E501 - as the tool prints it


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(chips, pci, shared, visible, smi): what a probe may look at."""

    def make(chips=(), pci=None, shared=probe.SHARED_FILES, visible=None, smi=None):
        devices, bus = tmp_path / "dev", tmp_path / "pci"
        bus.mkdir()
        devices.mkdir()
        for name in [*(f"davinci{number}" for number in chips), *(shared if chips else ())]:
            (devices / name).touch()
        for number, ids in enumerate([("0x8086", "0x1234"), *([pci] if pci else [])]):
            folder = bus / f"0000:{number:02}:00.0"
            folder.mkdir()
            for name, text in zip(("vendor", "device"), ids, strict=True):
                (folder / name).write_text(f"{text}\n")
        monkeypatch.setattr(probe, "DEVICES", devices)
        monkeypatch.setattr(probe, "PCI_DEVICES", bus)
        monkeypatch.delenv(probe.VISIBLE, raising=False)
        if visible is not None:
            monkeypatch.setenv(probe.VISIBLE, visible)

        def run(command, **options):
            if smi is None:
                raise FileNotFoundError(command[0])
            return types.SimpleNamespace(stdout=smi)

        monkeypatch.setattr(probe.subprocess, "run", run)
        return plugin.deepinfer_probe()

    return make


def reasons():
    return [reason.text for reason in plugin.deepinfer_missing_devices()]


@pytest.mark.parametrize(
    ("pci", "arch"), [(("0x19e5", "0xd802"), "910b"), (("0x19e5", "0xd803"), "910c")]
)
def test_the_bus_says_the_generation(machine, pci, arch):
    found = machine(chips=(0, 1, 10), pci=pci)
    assert [(device.kind, device.index, device.arch) for device in found] == [
        ("npu", index, arch) for index in range(3)
    ]
    assert found[0].features == next(soc.features for soc in SOCS if soc.arch == arch)
    assert reasons() == []


def test_without_the_bus_the_tool_is_asked(machine):
    assert [device.arch for device in machine(chips=(0, 1), smi=SMI)] == ["910b", "910b"]


@pytest.mark.parametrize(
    ("visible", "count"), [("1,0", 2), ("2", 0), ("1,9,0", 1), ("", 0), ("x", 0)]
)
def test_the_environment_chooses(machine, visible, count):
    assert len(machine(chips=(4, 5), pci=("0x19e5", "0xd802"), visible=visible)) == count


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no Ascend NPU on the PCI bus"),
        ({"pci": ("0x19e5", "0xd802")}, "its driver is not"),
        ({"chips": (0,), "shared": ("davinci_manager",)}, "--device /dev/devmm_svm"),
        ({"chips": (0,), "visible": "3"}, "hides all 1 NPUs"),
        ({"chips": (0,), "smi": "Ascend 310P"}, "no generation that is known"),
    ],
    ids=["nothing", "no driver", "container", "hidden", "other chip"],
)
def test_it_says_why_there_is_none(machine, given, told):
    assert machine(**given) == []
    assert [told in text for text in reasons()] == [True]


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("Ascend910B1", "910b"),
        ("910B4-1", "910b"),
        ("Ascend910_9362", "910c"),
        ("Ascend950PR_9589", "950"),
        ("Ascend910A", None),
        ("Ascend310P3", None),
    ],
)
def test_names_of_chips(name, arch):
    soc = find_soc(name)
    assert (soc and soc.arch) == arch


def test_a_plugin_is_light(run_program):
    code = """
import json, sys
from deepinfer_ascend import plugin
from deepinfer_ascend.emulation import plugin as emulation
from deepinfer_core.plugin_api import DeviceInfo
plugin.deepinfer_plugin_info(), plugin.deepinfer_probe(), plugin.deepinfer_missing_devices()
plugin.deepinfer_kernels(DeviceInfo("npu", arch="910b")), emulation.on_910b.deepinfer_probe()
print(json.dumps([name for name in ("torch", "torch_npu") if name in sys.modules]))
"""
    assert json.loads(run_program("-c", code)) == []


def test_kernels_are_for_its_own_devices():
    assert plugin.deepinfer_kernels(DeviceInfo("cpu")) == []
    assert plugin.deepinfer_device_runtime(DeviceInfo("cpu")) is None
    assert plugin.deepinfer_kernels(DeviceInfo("npu")) == []
    for soc in SOCS:
        kernels = plugin.deepinfer_kernels(DeviceInfo("npu", arch=soc.arch))
        assert {kernel.caps.device_kinds for kernel in kernels} == {("npu",)}


def test_one_table_says_what_a_chip_serves():
    def served(arch, op, **problem):
        device = DeviceInfo("npu", arch=arch)
        return make_op_table(plugin.deepinfer_kernels(device), device=device).bind(op, **problem)

    mixing = {"dtype": "bfloat16", "hc_mult": 4, "hidden_size": 4096}
    assert served("950", "hc.pre", **mixing).provider == "ascend.fused"
    for arch in ("910b", "910c"):
        assert served(arch, "hc.post", **mixing).provider == "ascend.fused"
        with pytest.raises(UnsupportedOpError):
            served(arch, "hc.pre", **mixing)
        with pytest.raises(UnsupportedOpError, match="fp8_token"):
            served(arch, "gemm.scaled", dtype="bfloat16", scheme="fp8_token")


@pytest.mark.parametrize(("block_size", "count"), [(128, 0), (256, 0), (16, 1)])
def test_small_pages_are_worth_a_word(block_size, count):
    config = types.SimpleNamespace(cache=types.SimpleNamespace(block_size=block_size))
    issues = plugin.deepinfer_check_config(config, DeviceInfo("npu", arch="910b"))
    assert [issue.severity for issue in issues] == ["warning"] * count
    assert plugin.deepinfer_check_config(config, DeviceInfo("cpu")) == []


class FakeNpu:
    """The part of `torch.npu` that the runtime uses."""

    def __init__(self, names=("Ascend910B3",)):
        self.names = names
        self.calls = []

    def device_count(self):
        return len(self.names)

    def get_device_name(self, index):
        return self.names[index]

    def mem_get_info(self, index):
        return 10, 100

    def memory_reserved(self, index):
        return 50

    def memory_allocated(self, index):
        return 30


@pytest.fixture
def start(monkeypatch):
    """start(arch, names): a runtime of the first device."""

    def start(arch="910b", names=("Ascend910B3",)):
        monkeypatch.setattr(runtime, "_import_npu", lambda: FakeNpu(names))
        monkeypatch.setattr(runtime, "version", lambda name: "2.13.0")
        return plugin.deepinfer_device_runtime(DeviceInfo("npu", arch=arch))

    return start


def test_a_runtime_drives_its_device(start):
    driver = start()
    assert (driver.kind, driver.torch_device, driver.collectives_backend) == (
        "npu",
        "npu:0",
        "hccl",
    )
    assert driver.memory_info() == (30, 100)


def test_a_runtime_says_what_does_not_fit(start):
    with pytest.raises(PlatformError, match="sees no NPU"):
        start(names=())
    with pytest.raises(PlatformError, match=r"Ascend910_9362.*910b"):
        start(names=("Ascend910_9362",))


def test_an_import_that_fails_is_explained():
    missing = ModuleNotFoundError("No module named 'torch_npu'", name="torch_npu")
    assert "torch-npu==2.13.*" in checks.why_no_import(missing, "2.13.0+cpu")
    no_toolkit = ImportError("libhccl.so: cannot open shared object file")
    assert checks.SET_ENV in checks.why_no_import(no_toolkit, "2.13.0")
    other = ImportError("undefined symbol: _ZN3c10")
    assert "same release" in checks.why_no_import(other, "2.13.0")


def test_without_torch_npu_the_remedy_is_named():
    with pytest.raises(PlatformError, match="pip install"):
        plugin.deepinfer_device_runtime(DeviceInfo("npu", arch="910b"))


@pytest.mark.parametrize("soc", SOCS, ids=lambda soc: soc.arch)
def test_the_reports_are_of_what_is_claimed(soc):
    """After a change: `deepinfer plugins check ..emulation.plugin:on_CHIP --report FILE`."""
    path = Path(__file__).parents[3] / "deepinfer-ascend" / "reports" / f"emulated-{soc.arch}.md"
    text = path.read_text()
    assert " 0 failed" in text
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    reported = {tuple(cell.strip("| ") for cell in row[:3]) for row in table}
    kernels = emulation.EmulatedPlugin(soc).deepinfer_kernels(DeviceInfo("npu", arch=soc.arch))
    claimed = {
        (kernel.op.partition("@")[0], kernel.provider, ", ".join(kernel.caps.dtypes))
        for kernel in kernels
    }
    assert reported == claimed
