"""What this plugin has. Light: the kernels are named here and imported when one is selected."""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import Caps, KernelSpec, PluginInfo

DTYPES = ("float32", "bfloat16", "float16")
# Only what was proven: vector and scalar code paths differ, so rows are not batch-invariant.
LAWS = frozenset({"deterministic", "empty_ok"})


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo("example", "0.1.0", vendor="DeepInfer", api=">=1.0,<2")


@hookimpl
def deepinfer_kernels() -> list[KernelSpec]:
    return [
        KernelSpec(
            op="norm.rms@1",
            provider="example.rms",
            target="deepinfer_example.kernels:rms",
            caps=Caps(dtypes=DTYPES, features=LAWS | {"residual"}),
            priority=10,
        ),
        KernelSpec(
            op="act.silu_mul@1",
            provider="example.silu_mul",
            target="deepinfer_example.kernels:silu_mul",
            caps=Caps(dtypes=DTYPES, features=LAWS | {"limit"}),
            priority=10,
        ),
    ]
