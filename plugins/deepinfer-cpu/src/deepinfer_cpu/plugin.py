"""What this plugin has. Light: the library is loaded when an engine is made or a kernel asked."""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    Caps,
    DeviceInfo,
    Issue,
    KernelSpec,
    PluginInfo,
    Problem,
    Reason,
)

from deepinfer_cpu import library

DTYPES = ("float32", "bfloat16", "float16")
LAWS = frozenset({"batch_invariant", "deterministic", "empty_ok", "graph_safe"})
LIBRARY = "deepinfer-cpu's library"
MAX_HEAD_DIM = 512
"""Above it the keys, values and sums of one tile no longer fit into the second cache."""


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("cpu", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_check_config(device: DeviceInfo) -> list[Issue]:
    """Say once per engine why core's slower kernels serve, if they do."""
    missing = library.problem() if device.kind == "cpu" else None
    if missing is None:
        return []
    return [Issue("warning", "device.kernels", f"{LIBRARY} is {missing}", "core's kernels serve")]


@hookimpl
def deepinfer_kernels() -> list[KernelSpec]:
    return [
        _kernel("norm.rms", "rms", "residual"),
        _kernel("act.silu_mul", "silu_mul", "limit"),
        _kernel("rope.apply", "rope", "interleaved", "inverse"),
        _kernel("kv.store", "store", "latent", "strided_cache"),
        _kernel(
            "attn.paged",
            "paged",
            *("varlen", "window", "sinks", "softcap", "lse_out", "strided_cache"),
        ),
        KernelSpec(
            op="gemm.dense@1",
            provider="cpu.dense",
            target="deepinfer_cpu.kernels:dense",
            prepare="deepinfer_cpu.weights:prepare",
            caps=Caps(dtypes=("float32", "bfloat16"), features=LAWS | {"bias"}),
            supports=_supports_dense,
        ),
    ]


def _kernel(op: str, name: str, *features: str) -> KernelSpec:
    return KernelSpec(
        op=f"{op}@1",
        provider=f"cpu.{name}",
        target=f"deepinfer_cpu.kernels:{name}",
        caps=Caps(dtypes=DTYPES, features=LAWS | frozenset(features)),
        supports=_supports,
    )


def _supports(problem: Problem) -> bool | Reason:
    missing = library.problem()
    if missing is not None:
        return Reason(f"{LIBRARY} is {missing}")
    head_dim = problem.dim("head_dim") or 0
    if problem.op == "attn.paged" and head_dim > MAX_HEAD_DIM:
        return Reason(f"head_dim {head_dim} is more than {MAX_HEAD_DIM}")
    return True


def _supports_dense(problem: Problem) -> bool | Reason:
    verdict = _supports(problem)
    if not verdict:
        return verdict
    level = library.library().level()
    wanted = "avx512_bf16" if problem.dtype == "bfloat16" else "avx512"
    if library.LEVELS.index(level) < library.LEVELS.index(wanted):
        return Reason(f"{problem.dtype} products need {wanted}, this CPU has {level}")
    in_features = problem.dim("in_features") or 0
    if problem.dtype == "bfloat16" and in_features % 2:
        return Reason(f"in_features {in_features} is odd; bfloat16 is multiplied in pairs")
    return True
