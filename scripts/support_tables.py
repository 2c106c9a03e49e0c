"""The support matrix, short and in full: what the registries of core and of the plugins here say.

Claims only; the conformance suite proves them.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from itertools import groupby
from pathlib import Path
from typing import get_args

import gguf
import numpy as np
from deepinfer_core.config import ModelConfig
from deepinfer_core.models.registry import BUILTIN_MODELS
from deepinfer_core.models.rope_config import RopeType
from deepinfer_core.ops import OP_SPECS, UNIVERSAL_FEATURES
from deepinfer_core.ops.registry import op_name
from deepinfer_core.plugin_api import DeviceInfo, KernelSpec, ModelSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.verify.report import CLOSE_BOUNDS
from deepinfer_core.weights.checkpoint import LoadFormat
from deepinfer_core.weights.gguf_info import ARCHITECTURES
from deepinfer_core.weights.safetensors_reader import FLOAT_DTYPES
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from markup import quoted, table

LAWS = {
    "batch_invariant": "B",
    "deterministic": "D",
    "graph_safe": "G",
    "empty_ok": "E",
}
SHORT_DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "uint8": "u8",
    "int32": "i32",
}
MAX_OPS_NAMED = 12
GGUF_TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
"""Promised; that the `gguf` library decodes each is checked here. Newer ones may decode more."""


def render(root: Path) -> str:
    """Models, checkpoints and backends, as Markdown."""
    host = load_plugins(root)
    dtypes = [d for d in get_args(ModelConfig.model_fields["dtype"].annotation) if d != "auto"]
    return "\n\n".join(
        [
            f"Models in {quoted(dtypes)}, with RoPE {quoted(get_args(RopeType))}.",
            _model_table([*BUILTIN_MODELS, *host.models()]),
            _checkpoint_table(),
            _backend_table(host),
        ]
    )


def render_ops(root: Path) -> str:
    """Every op with all that its kernels claim, as Markdown."""
    letters = ", ".join(f"{letter} `{law}`" for law, letter in LAWS.items())
    intro = f"A kernel is refused whatever it does not claim; laws are {letters}."
    return f"{intro}\n\n{_op_table(load_plugins(root))}"


def render_bounds(root: Path) -> str:
    """How close two tokens must be for `verify` to let an answer part there."""
    rows = [(f"`{dtype}`", f"{bound:g}") for dtype, bound in CLOSE_BOUNDS.items()]
    return table(("dtype", "bound"), rows)


def load_plugins(root: Path) -> PluginHost:
    """Core's own plugin and those in `plugins/`, from source, whatever is installed."""
    host = PluginHost(load_entry_points=False)
    for path in sorted(root.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        sys.path.insert(0, str(path.parent / "src"))
        for name, module in project["entry-points"]["deepinfer"].items():
            plugin = importlib.import_module(module)
            host.register(plugin, name=name, distribution=project["name"])
    return host


def _backend_table(host: PluginHost) -> str:
    """One row for each provider of core, and for the providers of each vendor."""
    kernels: dict[str, list[KernelSpec]] = {}
    for kernel in host.kernels(DeviceInfo(kind="cpu")):
        vendor = kernel.provider.partition(".")[0]
        name = kernel.provider if vendor == "torch" else f"{vendor}.*"
        kernels.setdefault(name, []).append(kernel)
    rows = []
    for name, group in sorted(kernels.items(), key=lambda item: -len(item[1])):
        ops = {op_name(kernel.op) for kernel in group}
        laws = [law for law in LAWS if all(law in kernel.caps.features for kernel in group)]
        which = quoted(sorted(ops)) if len(ops) <= MAX_OPS_NAMED else "see docs/support.md"
        rows.append((f"`{name}`", f"{len(ops)} of {len(OP_SPECS)}", which, quoted(laws)))
    return table(("kernels", "ops", "which", "all of them are"), rows)


def _op_table(host: PluginHost) -> str:
    """One row for ops of a family with the same claims by the same providers."""
    order = list(OP_SPECS)
    kernels = sorted(
        host.kernels(DeviceInfo(kind="cpu")), key=lambda kernel: order.index(op_name(kernel.op))
    )
    ops_by_claim: dict[tuple[str, ...], list[str]] = {}
    for (op, dtypes, features), group in groupby(kernels, key=_claim):
        providers = ", ".join(map(_provider_cell, group))
        family = op.partition(".")[0]
        ops_by_claim.setdefault((family, dtypes, features, providers), []).append(op)
    rows = [
        (quoted([ops[0], *(op.partition(".")[2] for op in ops[1:])]), *claim)
        for (_, *claim), ops in ops_by_claim.items()
    ]
    return table(("op", "dtypes", "features", "providers and their laws"), rows)


def _claim(kernel: KernelSpec) -> tuple[str, str, str]:
    caps = kernel.caps
    features = [*sorted(caps.features - UNIVERSAL_FEATURES), *caps.schemes]
    dtypes = " ".join(SHORT_DTYPES[dtype] for dtype in caps.dtypes)
    return op_name(kernel.op), dtypes, ", ".join(features) or "-"


def _provider_cell(kernel: KernelSpec) -> str:
    laws = "".join(letter for law, letter in LAWS.items() if law in kernel.caps.features)
    kinds = kernel.caps.device_kinds
    return f"`{kernel.provider}` {laws}" + ("" if "*" in kinds else f" on {', '.join(kinds)}")


def _model_table(specs: list[ModelSpec]) -> str:
    gguf_names = {hf_name: name for name, (hf_name, _) in ARCHITECTURES.items()}
    rows = [
        (
            spec.name,
            quoted(spec.architectures),
            quoted(gguf_names[a] for a in spec.architectures if a in gguf_names) or "-",
            (spec.load().__doc__ or "").strip().splitlines()[0],
        )
        for spec in specs
    ]
    return table(("model", "in `config.json`", "in GGUF", "what it is"), rows)


def _checkpoint_table() -> str:
    undecodable = [name for name in GGUF_TYPES if not _decodes(GGMLQuantizationType[name])]
    if undecodable:
        raise ValueError(f"the installed gguf library does not decode {undecodable}")
    formats = {
        "safetensors": (
            "Hugging Face directory, one file or shards",
            [*sorted(FLOAT_DTYPES), "FP8 in blocks", "MXFP4"],
        ),
        "gguf": ("one file; tokenizer and chat template from its metadata", GGUF_TYPES),
        "dummy": ("random weights for a `config.json` or a GGUF header", ()),
    }
    if {"auto", *formats} != set(get_args(LoadFormat)):
        raise ValueError(f"load formats are {get_args(LoadFormat)}; describe each here")
    rows = [(f"`{name}`", what, " ".join(types)) for name, (what, types) in formats.items()]
    return table(("checkpoint", "what", "numbers"), rows)


def _decodes(kind: GGMLQuantizationType) -> bool:
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        gguf.quants.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True
