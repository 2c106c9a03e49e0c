"""Every hook of API 1.0, with every argument, and every field of every record."""

from deepinfer_core import hookimpl
from deepinfer_core.errors import PlatformError
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.plugin_api import (
    API_VERSION,
    FEATURES,
    Caps,
    CommandSpec,
    DeviceInfo,
    DeviceRuntime,
    GrammarBackendSpec,
    HostInfo,
    Issue,
    KernelPolicy,
    KernelSpec,
    KVConnectorSpec,
    KVLayoutSpec,
    ModelSpec,
    PluginInfo,
    Problem,
    ProposerSpec,
    QuantSchemeSpec,
    Reason,
    RecipeSpec,
    StageSpec,
    StatLoggerSpec,
)

DEVICE = DeviceInfo(
    kind="canary",
    index=0,
    arch="1.5",
    memory_bytes=1 << 30,
    uuid="canary-0",
    features=frozenset({"sings"}),
)


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo(name="canary", version="1.0", vendor="Canary", api=">=1.0,<2")


@hookimpl
def deepinfer_probe(host: HostInfo):
    assert int(host.api_version.split(".")[0]) == int(API_VERSION.split(".")[0])
    assert host.core_version and host.python_version and host.system and host.machine
    return [DEVICE] if host.torch_version else []


@hookimpl
def deepinfer_device_runtime(device: DeviceInfo):
    return Runtime(device) if device.kind == "canary" else None


def _supports(problem: Problem):
    if problem.op == "norm.rms" and (problem.dim("hidden_size") or 0) % 2:
        return Reason("hidden_size must be even")
    return problem.dtype in ("float32", "bfloat16") and problem.kv_dtype is None


@hookimpl
def deepinfer_kernels(device: DeviceInfo):
    assert "norm.rms" in OP_SPECS and "residual" in FEATURES
    yield KernelSpec(
        op="norm.rms@1",
        provider="canary.rms",
        target="canary_vendor.kernels:rms",
        caps=Caps(
            device_kinds=("canary", "cpu"),
            arch=(None, None),
            dtypes=("float32", "bfloat16"),
            kv_dtypes=(),
            dims={"hidden_size": (4, 5, 8)},
            features=frozenset({"residual", "deterministic", "empty_ok"}),
        ),
        supports=_supports,
        workspace=lambda problem: 4 * (problem.dim("hidden_size") or 0),
        plan="canary_vendor.kernels:plan",
        fake="canary_vendor.kernels:fake_rms",
        priority=30,
        numerics="rounding",
    )
    yield KernelSpec("act.silu_mul@1", "canary.silu_mul", "canary_vendor.kernels:silu_mul")


@hookimpl
def deepinfer_kernel_policy(device: DeviceInfo, model):
    assert model.architecture and model.dtype and model.raw_config is not None
    return [KernelPolicy(op="act.*", providers=("canary.silu_mul",), reason="sings", role="*")]


@hookimpl
def deepinfer_check_config(config, device: DeviceInfo):
    if config.cache.block_size % 16:
        return [
            Issue(
                severity="warning",
                path="cache.block_size",
                message="canaries count in sixteens",
                suggestion="16",
            )
        ]


@hookimpl
def deepinfer_kv_layouts(device: DeviceInfo):
    return [
        KVLayoutSpec(
            name="paged", group_kinds=("full", "window"), block_sizes=(16,), kv_dtypes=("float32",)
        )
    ]


@hookimpl
def deepinfer_models():
    return [ModelSpec(name="canary", target="canary_vendor.kernels:Thing", architectures=("C",))]


@hookimpl
def deepinfer_recipes():
    return [RecipeSpec(name="canary", target="canary_vendor.kernels:Thing", architectures=("C",))]


@hookimpl
def deepinfer_commands():
    return [CommandSpec(name="sing", target="canary_vendor.kernels:Thing", help="Sing.")]


@hookimpl
def deepinfer_logits_stages():
    return [StageSpec(name="canary", target="canary_vendor.kernels:Thing")]


@hookimpl
def deepinfer_quant_schemes():
    return [QuantSchemeSpec(name="canary", target="canary_vendor.kernels:Thing")]


@hookimpl
def deepinfer_proposers():
    return [ProposerSpec(name="canary", target="canary_vendor.kernels:Thing", runs_on="device")]


@hookimpl
def deepinfer_grammar_backends():
    return [GrammarBackendSpec(name="canary", target="canary_vendor.kernels:Thing")]


@hookimpl
def deepinfer_kv_connectors():
    return [KVConnectorSpec(name="canary", target="canary_vendor.kernels:Thing")]


@hookimpl
def deepinfer_stat_loggers():
    return [StatLoggerSpec(name="canary", target="canary_vendor.kernels:Thing")]


class Runtime(DeviceRuntime):
    """Pretends to be a device, on the CPU."""

    kind = "canary"
    torch_device = "cpu"
    supports_graphs = False
    collectives_backend = "gloo"
    index = 0

    def __init__(self, device: DeviceInfo):
        assert device.index == self.index

    def activate(self): ...

    def synchronize(self): ...

    def memory_info(self):
        return 1 << 29, 1 << 30

    def create_event(self): ...

    def stream(self): ...

    def pinned_empty(self, shape, dtype): ...

    def capture(self, function):
        raise PlatformError("canaries have no graphs")
