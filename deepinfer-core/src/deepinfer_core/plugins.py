"""`PluginHost`: loads plugins, asks their hooks one by one, and keeps what went wrong.

Hooks are asked at start-up only; callers freeze the answers. A failing plugin costs only itself,
unless it was named or the requested device needs it. Knows no model and no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import pluggy

from deepinfer_core import __version__, builtin_plugin
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import PlatformError, PluginError
from deepinfer_core.plugin_api import (
    CommandSpec,
    DeviceInfo,
    DeviceRuntime,
    Issue,
    KernelPolicy,
    KernelSpec,
    KVLayoutSpec,
    ModelFacts,
    ModelSpec,
    Reason,
    RecipeSpec,
    StageSpec,
    TargetRecord,
    hookspecs,
    load_target,
)
from deepinfer_core.plugin_api.markers import PROJECT_NAME
from deepinfer_core.plugin_checks import (
    TARGET_HOOKS,
    claim_key,
    records_of,
    refuse_taken,
    runtime_of,
)
from deepinfer_core.plugin_discovery import (
    PluginRecord,
    find_plugins,
    host_info,
    import_plugin,
    introduce_plugin,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=TargetRecord)

CPU_RUNTIME = "deepinfer_core.runtime.device:CpuRuntime"
ACCELERATOR_RUNTIME = "deepinfer_core.runtime.device:AcceleratorRuntime"


class PluginHost:
    """All plugins of one process.

    Args:
        load_entry_points: False loads built-ins only; tests then `register` their own.
        allow: names of the only plugins to load, by entry point or distribution; each of them
            is then named, and its failure fatal. None allows all.
        block: names of plugins not to load.

    Raises:
        PluginError: a named plugin is not installed or failed.
    """

    def __init__(
        self,
        load_entry_points: bool = True,
        allow: Sequence[str] | None = None,
        block: Sequence[str] = (),
    ) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(hookspecs)
        self._records: list[PluginRecord] = []
        self._has_probed = False
        self.failures: list[PluginError] = []
        """One for each plugin that failed and was not fatal."""
        core = PluginRecord(builtin_plugin.NAME, builtin_plugin.DISTRIBUTION, __version__)
        core.is_builtin = core.is_named = True
        self._load(core, lambda: builtin_plugin)
        for record, load in find_plugins(allow, block) if load_entry_points else []:
            self._load(record, load)

    @property
    def plugins(self) -> list[PluginRecord]:
        """One record for each plugin, blocked and failed ones too; core's own is first."""
        return list(self._records)

    def register(
        self,
        plugin: object,
        *,
        name: str,
        distribution: str | None = None,
        version: str = "0",
        is_named: bool = True,
    ) -> PluginRecord:
        """Load a plugin that is not installed: a module or an object with hook methods.

        Raises:
            PluginError: it failed, and it is named.
        """
        record = PluginRecord(
            name=name, distribution=distribution or name, version=version, is_named=is_named
        )
        self._load(record, lambda: plugin)
        if self._has_probed:
            self._probe(record)
        return record

    def devices(self) -> list[DeviceInfo]:
        """Devices of all plugins that work, core's CPU first. Probes on the first call only."""
        if not self._has_probed:
            self._has_probed = True
            for record in self._loaded():
                self._probe(record)
        return [device for record in self._loaded() for device in record.devices]

    def find_device(self, kind: str = "auto", index: int = 0) -> DeviceInfo:
        """The device to run on.

        Args:
            kind: `auto` takes the first accelerator that was found, else the CPU.

        Raises:
            PluginError: the plugin that serves this kind failed.
            PlatformError: there is no such device; says what was found.
        """
        devices = self.devices()
        if kind == "auto":
            return next((d for d in devices if d.kind != "cpu"), devices[0])
        for device in devices:
            if (device.kind, device.index) == (kind, index):
                return device
        for record in self._records:
            if record.failure and record.serves(kind):
                raise record.failure
        found = ", ".join(f"{d.kind}:{d.index}" for d in devices)
        known = ", ".join(f"{r.key} {r.state}" for r in self._records)
        missing = "".join(f"; {reason.text}" for reason in self.missing_devices())
        raise PlatformError(
            f"wanted device {kind}:{index}, found {found}{missing}; plugins: {known}; "
            "install the plugin that serves the device, or take one that was found"
        )

    def missing_devices(self) -> list[Reason]:
        """Why devices that plugins could serve are not there."""
        return self._collect("deepinfer_missing_devices", Reason, host=host_info())

    def device_runtime(self, device: DeviceInfo) -> DeviceRuntime:
        """The one runtime that drives a device: a plugin's, or core's default.

        Raises:
            PluginError: two plugins answer (names both), or the one that the device needs fails.
            PlatformError: this machine or its torch cannot drive the device.
        """
        answers = [
            (record, runtime)
            for record in self._loaded()
            for runtime in self._ask(record, "deepinfer_device_runtime", runtime_of, device=device)
        ]
        if len(answers) > 1:
            names = " and ".join(f"{r.distribution} {r.version}" for r, _ in answers)
            raise PluginError(
                f"{names} both drive {device.kind}:{device.index}; block one of them",
                hook="deepinfer_device_runtime",
            )
        if answers:
            return answers[0][1]
        target = CPU_RUNTIME if device.kind == "cpu" else ACCELERATOR_RUNTIME
        runtime: DeviceRuntime = load_target(target)(device)
        return runtime

    def kernels(
        self, device: DeviceInfo, *, named_providers: Iterable[str] = ()
    ) -> list[KernelSpec]:
        """Kernels that plugins offer for a device, core's references first.

        Args:
            named_providers: that a person asked for; their vendors' plugins are then named too.

        Raises:
            PluginError: the plugin was named or the device needs it, and it failed.
        """
        vendors = {provider.partition(".")[0] for provider in named_providers}
        for record in self._records:
            if record.matches(vendors):
                record.is_named = True
                if record.failure:
                    raise record.failure
        return self._collect("deepinfer_kernels", KernelSpec, claim_key, device=device)

    def kernel_policies(self, device: DeviceInfo, model: ModelFacts) -> list[KernelPolicy]:
        """Preferences among kernels for one model; the first that matches counts."""
        return self._collect("deepinfer_kernel_policy", KernelPolicy, device=device, model=model)

    def check_config(self, config: EngineConfig, device: DeviceInfo) -> list[Issue]:
        """What plugins have to say about a configuration, before anything is built."""
        return self._collect("deepinfer_check_config", Issue, config=config, device=device)

    def kv_layouts(self, device: DeviceInfo) -> list[KVLayoutSpec]:
        """Variants of the paged cache that the device's kernels can read."""
        return self._collect("deepinfer_kv_layouts", KVLayoutSpec, device=device)

    def models(self) -> list[ModelSpec]:
        return self.targets(ModelSpec)

    def recipes(self) -> list[RecipeSpec]:
        return self.targets(RecipeSpec)

    def commands(self) -> list[CommandSpec]:
        return self.targets(CommandSpec)

    def logits_stages(self) -> list[StageSpec]:
        return self.targets(StageSpec)

    def targets(self, record_type: type[R]) -> list[R]:
        """Named records of one type, such as `ProposerSpec`; names are unique."""
        return self._collect(TARGET_HOOKS[record_type], record_type, attrgetter("name"))

    def _loaded(self) -> list[PluginRecord]:
        return [record for record in self._records if record.state == "loaded"]

    def _load(self, record: PluginRecord, load: Callable[[], object]) -> None:
        self._records.append(record)
        if record.state == "blocked":
            return
        try:
            import_plugin(record, load)
            introduce_plugin(record, self._manager)
        except PluginError as error:
            self._fail(record, error, is_fatal=record.is_named)
        if record.is_slow:
            logger.warning(
                "plugin %s took %.1f s to import; its entry module should only list what it has",
                record.key,
                record.import_s,
            )

    def _probe(self, record: PluginRecord) -> None:
        take = partial(records_of, expected=DeviceInfo)
        record.devices = tuple(self._ask(record, "deepinfer_probe", take, host=host_info()))

    def _collect(
        self,
        hook: str,
        expected: type[T],
        key: Callable[[T], str] | None = None,
        **arguments: Any,
    ) -> list[T]:
        """Ask every plugin and join the answers, of which `key` must be unique."""
        records: list[T] = []
        owners: dict[str, str] = {}
        for record in self._loaded():

            def take(answer: object) -> list[T]:
                own = records_of(answer, expected)
                refuse_taken(map(key, own) if key else (), owners)
                return own

            own = self._ask(record, hook, take, **arguments)
            owners.update((key(item), record.key) for item in own if key)
            records.extend(own)
        return records

    def _ask(
        self, record: PluginRecord, hook: str, take: Callable[[object], list[T]], **arguments: Any
    ) -> list[T]:
        """Call one hook of one plugin; empty if the plugin has no such hook, or just failed."""
        caller = getattr(self._manager.hook, hook)
        try:
            for impl in caller.get_hookimpls():
                if impl.plugin is record.plugin:
                    return take(impl.function(*(arguments[name] for name in impl.argnames)))
        # A border: whatever a plugin raises becomes an error that names it ...
        except Exception as error:
            if isinstance(error, PlatformError) and hook == "deepinfer_device_runtime":
                raise  # ... unless the machine is at fault.
            failure = record.error(f"{type(error).__name__}: {error}", hook=hook)
            failure.__cause__ = error
            is_needed = "device" in arguments and self._is_needed(record, arguments["device"])
            self._fail(record, failure, is_fatal=record.is_named or is_needed)
        return []

    def _is_needed(self, record: PluginRecord, device: DeviceInfo) -> bool:
        """Whether a device is only there because of this plugin."""
        others = [r for r in self._records if r is not record]
        is_found_elsewhere = any(device in other.devices for other in others)
        return not is_found_elsewhere and record.serves(device.kind)

    def _fail(self, record: PluginRecord, error: PluginError, *, is_fatal: bool) -> None:
        record.state, record.failure = "failed", error
        if is_fatal:
            raise error
        self.failures.append(error)
        logger.warning("%s; it is left out, `deepinfer plugins` lists it", error)
