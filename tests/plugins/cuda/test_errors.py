"""What a person is told where a GPU, its driver or a kernel cannot be used."""

import types
from dataclasses import replace

import pytest
import torch
from deepinfer_core import hookimpl
from deepinfer_core.cli.kernels_explain import explain_model
from deepinfer_core.config import EngineConfig, nest_fields
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import choose_device
from deepinfer_core.errors import ConfigError, PlatformError, UnsupportedOpError
from deepinfer_core.plugin_api import DeviceInfo, PluginInfo, load_target
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_cuda import plugin, probe, runtime
from deepinfer_cuda.checks import check_arch, why_unusable
from fake_driver import FakeDriver

pytest.importorskip("triton")
from deepinfer_cuda.compile_errors import SourceError, compile_failure
from triton.runtime.errors import OutOfResources, PTXASError

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


REFUSED = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from deepinfer_cuda.compile_errors import compile_failure

@triton.jit
def kernel(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr).to(tl.float32))

source = ASTSource(kernel, signature={"x_ptr": "*fp8e4nv", "y_ptr": "*fp32"})
try:
    triton.compile(source, target=GPUTarget("cuda", 80, 32))
except Exception as error:
    print(compile_failure(error))
"""


def test_what_triton_refuses_is_a_failure_to_compile(run_program, tmp_path):
    program = tmp_path / "refused.py"  # Triton reads kernels from files
    program.write_text(REFUSED)
    assert "fp8e4nv not supported" in run_program(program)


@pytest.mark.parametrize(
    ("error", "is_failure"),
    [
        (OutOfResources(300_000, 232_448, "shared memory"), True),
        (PTXASError("unknown instruction"), True),
        (RuntimeError("PassManager::run failed"), True),
        (SourceError("kernel skinny does not compile for sm_90: error"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("shapes differ"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_a_failure_to_compile(error, is_failure):
    found = compile_failure(error)
    assert (found is not None) == is_failure
    assert not is_failure or str(error) in found


def test_every_kernel_says_whether_it_compiles():
    kernels = plugin.deepinfer_kernels(DeviceInfo("cuda", arch="9.0"))
    ours = [kernel for kernel in kernels if kernel.provider.startswith("cuda.triton")]
    assert len(ours) > 20
    assert {load_target(kernel.compile_failure) for kernel in ours} == {compile_failure}


@pytest.fixture
def broken_norms(monkeypatch, tmp_path):
    """The plugin's norms for the CPU, in a host, that do not compile; and the flags of a model."""

    def rms(x, weight, eps, residual=None):
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr("deepinfer_core.ops.reference.norm.broken", rms, raising=False)
    norm = next(
        kernel
        for kernel in plugin.deepinfer_kernels(DeviceInfo("cuda", arch="9.0"))
        if kernel.op == "norm.rms@1"
    )
    norm = replace(
        norm,
        target="deepinfer_core.ops.reference.norm:broken",
        caps=replace(norm.caps, device_kinds=("cpu",), arch=(None, None)),
    )

    class Norms:
        @hookimpl
        def deepinfer_plugin_info(self):
            return PluginInfo("norms", "1", "tests", api=">=1.0,<2")

        @hookimpl
        def deepinfer_kernels(self, device):
            return [norm]

    host = PluginHost(load_entry_points=False)
    host.register(Norms(), name="norms")
    path = write_tiny_checkpoint(tmp_path / "model", "llama")
    flags = {"num_blocks": 50, "dtype": "float32", "cache_dir": str(tmp_path / "cache")}
    return host, str(path), flags


def run(host, path, flags):
    engine = Engine.from_config(EngineConfig.from_flat(path, kind="cpu", **flags), host)
    (request,) = engine.add([5, 6, 7], SamplingParams(temperature=0, max_tokens=4))
    while engine.has_unfinished:
        engine.advance()
    return request.output_token_ids


def test_a_model_runs_on_without_the_kernel_and_explain_says_why(broken_norms, caplog):
    host, path, flags = broken_norms
    expected = run(PluginHost(load_entry_points=False), path, flags)
    assert run(host, path, flags) == expected
    assert "cuda.triton of norm.rms@1 does not compile on this device" in caplog.text
    explanation = explain_model(nest_fields({"model": path, "kind": "cpu", **flags}), host)
    norms = [choice for choice in explanation.choices if choice.op == "norm.rms"]
    assert {norm.provider for norm in norms} == {"torch.reference"}
    for norm in norms:
        assert "out of resource: shared memory" in dict(norm.rejected)["cuda.triton"]


def test_a_kernel_that_was_named_stops_the_engine(broken_norms):
    host, path, flags = broken_norms
    with pytest.raises(UnsupportedOpError, match=r"named, but does not compile on this device"):
        run(host, path, {**flags, "kernels": {"norm.rms": "cuda.triton"}})
