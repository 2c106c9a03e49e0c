"""The plugin's kernels claimed for the CPU, where Triton's interpreter runs them.

A decode is shared out among few programs only: each of them takes milliseconds here. The
interpreter cuts bfloat16 off instead of rounding, and multiplies its bit patterns in `tl.dot`, so
nothing is claimed for it.
"""

from dataclasses import replace

import eight_bits
from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import DeviceInfo, PluginInfo
from deepinfer_cuda import heuristics_attention, heuristics_latent, plugin
from deepinfer_cuda.kernels import quant

heuristics_attention.MAX_SPLITS = 3
heuristics_attention.LANES = 3
heuristics_latent.MAX_SHARES = 3
quant.MIN_MANY = 16
eight_bits.round_as_devices_do()


@hookimpl
def deepinfer_plugin_info():
    return PluginInfo("interpreted", "0.1.0", vendor="tests", api=">=1.0,<2")


@hookimpl
def deepinfer_kernels(device):
    del device
    kernels = plugin.deepinfer_kernels(DeviceInfo("cuda"))
    in_triton = [kernel for kernel in kernels if kernel.provider.startswith("cuda.triton")]
    return [replace(kernel, caps=_on_cpu(kernel.caps)) for kernel in in_triton]


def _on_cpu(caps):
    features = caps.features - {"graph_safe"}
    dtypes = tuple(dtype for dtype in caps.dtypes if dtype != "bfloat16")
    return replace(caps, device_kinds=("cpu",), arch=(None, None), dtypes=dtypes, features=features)
