"""Core's own plugin: the CPU, and the torch references as kernels for any device.

Registers through the same manager as everybody else's.
"""

from __future__ import annotations

from deepinfer_core import __version__
from deepinfer_core.host_machine import cpu_features, memory_info
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.plugin_api import (
    API_VERSION,
    DeviceInfo,
    GrammarBackendSpec,
    HostInfo,
    KernelSpec,
    PluginInfo,
    ProposerSpec,
    hookimpl,
)

NAME = "core"
DISTRIBUTION = "deepinfer-core"


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    return PluginInfo(NAME, __version__, "DeepInfer", api=f"=={API_VERSION}")


@hookimpl
def deepinfer_probe(host: HostInfo) -> list[DeviceInfo]:
    return [
        DeviceInfo(
            kind="cpu", arch=host.machine, memory_bytes=memory_info()[1], features=cpu_features()
        )
    ]


@hookimpl
def deepinfer_kernels() -> list[KernelSpec]:
    return reference_kernels()


@hookimpl
def deepinfer_proposers() -> list[ProposerSpec]:
    drafters = "deepinfer_core.speculative.drafters"
    return [
        ProposerSpec("ngram", "deepinfer_core.speculative.ngram:Ngram"),
        ProposerSpec("suffix", "deepinfer_core.speculative.suffix:Suffix"),
        ProposerSpec("draft_model", f"{drafters}:load_draft_model", runs_on="device"),
        ProposerSpec("mtp", f"{drafters}:load_mtp", runs_on="device"),
        ProposerSpec("dspark", f"{drafters}:load_dspark", runs_on="device"),
    ]


@hookimpl
def deepinfer_grammar_backends() -> list[GrammarBackendSpec]:
    package = "deepinfer_core.structured"
    return [
        GrammarBackendSpec("xgrammar", f"{package}.xgrammar_backend:XgrammarBackend"),
        GrammarBackendSpec("llguidance", f"{package}.llguidance_backend:LlguidanceBackend"),
    ]
