"""Every hook of the plugin contract, API 1.0, each with an example.

Hooks run at start-up only; what they return is frozen into tables. All of them collect typed
records, none is `firstresult`. An implementation may take fewer arguments than the hook has, so a
new argument breaks nobody. A hook may return None for "nothing".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deepinfer_core.plugin_api.device import DeviceInfo, DeviceRuntime, HostInfo
from deepinfer_core.plugin_api.kernel import KernelSpec, Reason
from deepinfer_core.plugin_api.markers import hookspec
from deepinfer_core.plugin_api.records import (
    CommandSpec,
    GrammarBackendSpec,
    Issue,
    KernelPolicy,
    KVConnectorSpec,
    KVLayoutSpec,
    ModelFacts,
    ModelSpec,
    PluginInfo,
    ProposerSpec,
    QuantSchemeSpec,
    RecipeSpec,
    StageSpec,
    StatLoggerSpec,
)

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig


@hookspec
def deepinfer_plugin_info() -> PluginInfo:
    """Say who you are and which API you work with. The only hook that every plugin has.

    Called at discovery, before anything of the vendor may be imported.

        @hookimpl
        def deepinfer_plugin_info():
            return PluginInfo(name="acme", version="1.2", vendor="Acme", api=">=1.0,<2")
    """


@hookspec
def deepinfer_probe(host: HostInfo) -> Iterable[DeviceInfo] | None:
    """List the devices of this machine.

    Called in the parent process. Must not create a device context and must not raise: a machine
    without the hardware or its driver simply has no devices.

        @hookimpl
        def deepinfer_probe(host):
            return [DeviceInfo(kind="acme", index=i, arch="2.0") for i in range(count_boards())]
    """


@hookspec
def deepinfer_missing_devices(host: HostInfo) -> Iterable[Reason] | None:
    """Say why devices of yours are not there, in words that a person can act on.

    Called in the parent process, when somebody wanted a device that nobody found, and by
    `deepinfer doctor`. Like the probe it must not create a device context and must not raise.

        @hookimpl
        def deepinfer_missing_devices(host):
            if not driver_answers():
                return [Reason("the driver of Acme boards does not answer; load acme.ko")]
    """


@hookspec
def deepinfer_device_runtime(device: DeviceInfo) -> DeviceRuntime | None:
    """Return the runtime that drives this device, None for devices of others.

    Called in the worker. Two plugins that answer for one device are an error that names both.
    Raise `PlatformError` where the machine, not the plugin, is to be mended.

        @hookimpl
        def deepinfer_device_runtime(device):
            return AcmeRuntime(device.index) if device.kind == "acme" else None
    """


@hookspec
def deepinfer_kernels(device: DeviceInfo) -> Iterable[KernelSpec] | None:
    """List the kernels you have for this device.

    Called in the worker. Kernels are named by string and imported only when they are selected.

        @hookimpl
        def deepinfer_kernels(device):
            return [
                KernelSpec(
                    op="norm.rms@1",
                    provider="acme.fused",
                    target="acme_deepinfer.norm:rms",
                    caps=Caps(device_kinds=("acme",), dtypes=("bfloat16",),
                              features=frozenset({"residual", "empty_ok"})),
                )
            ]
    """


@hookspec
def deepinfer_kernel_policy(device: DeviceInfo, model: ModelFacts) -> Iterable[KernelPolicy] | None:
    """Prefer some kernels for this model on this device, and say why.

    @hookimpl
    def deepinfer_kernel_policy(device, model):
        if model.raw_config.get("num_key_value_heads") == 1:
            return [KernelPolicy("attn.paged", ("acme.mqa",), "one kv head: no split needed")]
    """


@hookspec
def deepinfer_check_config(config: EngineConfig, device: DeviceInfo) -> Iterable[Issue] | None:
    """Look at a configuration before anything is built. Read-only: it is frozen.

    @hookimpl
    def deepinfer_check_config(config, device):
        if device.kind == "acme" and config.cache.block_size % 32:
            return [Issue("error", "cache.block_size", "must be a multiple of 32", "use 32")]
    """


@hookspec
def deepinfer_kv_layouts(device: DeviceInfo) -> Iterable[KVLayoutSpec] | None:
    """List the variants of the paged cache that your kernels can read.

    @hookimpl
    def deepinfer_kv_layouts(device):
        return [KVLayoutSpec("paged", ("full", "window"), (16, 32), ("bfloat16",))]
    """


@hookspec
def deepinfer_models() -> Iterable[ModelSpec] | None:
    """List model classes for architectures that core does not know.

    @hookimpl
    def deepinfer_models():
        return [ModelSpec("foo", "acme_deepinfer.foo:Foo", ("FooForCausalLM",))]
    """


@hookspec
def deepinfer_recipes() -> Iterable[RecipeSpec] | None:
    """List prompt encoders and output parsers.

    @hookimpl
    def deepinfer_recipes():
        return [RecipeSpec("foo", "acme_deepinfer.recipe:FooRecipe", ("FooForCausalLM",))]
    """


@hookspec
def deepinfer_commands() -> Iterable[CommandSpec] | None:
    """List subcommands of `deepinfer`.

    @hookimpl
    def deepinfer_commands():
        return [CommandSpec("serve", "acme_deepinfer.cli:serve", "Serve over HTTP.")]
    """


@hookspec
def deepinfer_logits_stages() -> Iterable[StageSpec] | None:
    """List logits stages that requests may name.

    @hookimpl
    def deepinfer_logits_stages():
        return [StageSpec("no_repeat", "acme_deepinfer.stages:no_repeat")]
    """


@hookspec
def deepinfer_quant_schemes() -> Iterable[QuantSchemeSpec] | None:
    """List quantisation schemes.

    @hookimpl
    def deepinfer_quant_schemes():
        return [QuantSchemeSpec("acme4", "acme_deepinfer.quant:Acme4")]
    """


@hookspec
def deepinfer_proposers() -> Iterable[ProposerSpec] | None:
    """List makers of draft tokens.

    @hookimpl
    def deepinfer_proposers():
        return [ProposerSpec("lookup", "acme_deepinfer.drafts:Lookup", runs_on="host")]
    """


@hookspec
def deepinfer_grammar_backends() -> Iterable[GrammarBackendSpec] | None:
    """List compilers for structured output.

    @hookimpl
    def deepinfer_grammar_backends():
        return [GrammarBackendSpec("acme", "acme_deepinfer.grammar:Backend")]
    """


@hookspec
def deepinfer_kv_connectors() -> Iterable[KVConnectorSpec] | None:
    """List tiers of the KV cache below the device.

    @hookimpl
    def deepinfer_kv_connectors():
        return [KVConnectorSpec("disk", "acme_deepinfer.kv:Disk")]
    """


@hookspec
def deepinfer_stat_loggers() -> Iterable[StatLoggerSpec] | None:
    """List receivers of the engine's metrics.

    @hookimpl
    def deepinfer_stat_loggers():
        return [StatLoggerSpec("statsd", "acme_deepinfer.stats:Statsd")]
    """
