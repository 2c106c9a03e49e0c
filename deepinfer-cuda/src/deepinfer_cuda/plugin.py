"""What this plugin has. Light: neither torch nor Triton is imported before a device is wanted."""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    Caps,
    DeviceInfo,
    DeviceRuntime,
    KernelSpec,
    PluginInfo,
    load_target,
)

from deepinfer_cuda.probe import KIND, find_devices

DTYPES = ("float32", "bfloat16", "float16")
LAWS = frozenset({"deterministic", "empty_ok", "graph_safe"})
INVARIANT = LAWS | {"batch_invariant"}
OLDEST = "8.0"


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("cuda", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_probe() -> list[DeviceInfo]:
    return find_devices()


@hookimpl
def deepinfer_device_runtime(device: DeviceInfo) -> DeviceRuntime | None:
    if device.kind != KIND:
        return None
    runtime: DeviceRuntime = load_target("deepinfer_cuda.runtime:CudaRuntime")(device)
    return runtime


@hookimpl
def deepinfer_kernels(device: DeviceInfo) -> list[KernelSpec]:
    if device.kind != KIND:
        return []
    return [
        _kernel("norm.rms", "norm:rms", INVARIANT, "residual"),
        _kernel("act.silu_mul", "act:silu_mul", INVARIANT, "limit"),
        _kernel("rope.apply", "rope:apply", INVARIANT, "interleaved", "inverse"),
        _kernel("kv.store", "store:store", INVARIANT, "latent", "strided_cache"),
        _kernel("attn.qkv", "qkv:qkv", INVARIANT, "qk_norm", "interleaved", "strided_cache"),
        _kernel(
            "attn.paged",
            "paged:paged",
            LAWS,
            *("varlen", "window", "sinks", "softcap", "lse_out", "strided_cache"),
            plan="paged:plan",
        ),
    ]


def _kernel(
    op: str, place: str, laws: frozenset[str], *features: str, plan: str | None = None
) -> KernelSpec:
    module = "deepinfer_cuda.kernels"
    return KernelSpec(
        op=f"{op}@1",
        provider="cuda.triton",
        target=f"{module}.{place}",
        plan=plan and f"{module}.{plan}",
        caps=Caps(
            device_kinds=(KIND,),
            arch=(OLDEST, None),
            dtypes=DTYPES,
            features=laws | frozenset(features),
        ),
        priority=10,
    )
