"""Finding plugins: entry points, load control, and the one record that is kept of each.

Imports and examines plugin by plugin, so that a failure names its distribution, version and
stage and costs nobody else. Calls no hook but `deepinfer_plugin_info`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pluggy

from deepinfer_core import __version__
from deepinfer_core.errors import PluginError
from deepinfer_core.plugin_api import API_VERSION, DeviceInfo, HostInfo, PluginInfo, range_problem
from deepinfer_core.plugin_api.markers import PROJECT_NAME
from deepinfer_core.plugin_checks import record_problem, unknown_hook, unmarked_hook

SLOW_IMPORT_S = 1.0
"""A plugin's entry module only lists what it has; longer than this, it imports its vendor."""


@dataclass(slots=True)
class PluginRecord:
    """What the host knows of one plugin."""

    name: str
    """Of the entry point: the device kind or the feature that it serves."""
    distribution: str
    version: str
    """Of the distribution."""
    state: Literal["found", "loaded", "blocked", "failed"] = "found"
    is_named: bool = False
    """Somebody asked for it by name, so its failure is fatal."""
    is_builtin: bool = False
    info: PluginInfo | None = None
    hooks: tuple[str, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    failure: PluginError | None = None
    import_s: float = 0.0
    plugin: object | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Unique among the plugins of a host; also the order in which they are asked."""
        return f"{self.name} ({self.distribution})"

    @property
    def is_slow(self) -> bool:
        return self.import_s > SLOW_IMPORT_S

    @property
    def build(self) -> str:
        """Another one after every change of the plugin: its version, and when a file of it changed.

        For what is remembered from one start to the next.
        """
        file = getattr(self.plugin, "__file__", None)
        if file is None or self.is_builtin:
            return self.version
        is_package = Path(file).with_name("__init__.py").exists()
        files = Path(file).parent.rglob("*") if is_package else [Path(file)]
        # Python writes those of its own whenever it likes, and folders change with them.
        sources = (path for path in files if path.suffix not in ("", ".pyc"))
        changes = [path.stat().st_mtime_ns for path in sources]
        return f"{self.version} {max(changes, default=0)}"

    def matches(self, names: Iterable[str]) -> bool:
        """Whether a name means this plugin: its entry point's, its distribution's, its own."""
        own = {_normalise(self.name), _normalise(self.distribution)}
        if self.info:
            own.add(_normalise(self.info.name))
        return any(_normalise(name) in own for name in names)

    def serves(self, kind: str) -> bool:
        """Whether devices of this kind are this plugin's to find."""
        return self.name == kind or any(device.kind == kind for device in self.devices)

    def error(self, message: str, *, hook: str) -> PluginError:
        """An error that names this plugin; on one line, since it may become a log line."""
        return PluginError(
            " ".join(message.split()),
            distribution=self.distribution,
            version=self.version,
            hook=hook,
        )


def find_plugins(
    allow: Sequence[str] | None, block: Sequence[str]
) -> list[tuple[PluginRecord, Callable[[], object]]]:
    """List installed plugins, each with the function that imports it. Imports nothing.

    Args:
        allow: names of the only plugins to load; None allows all.
        block: names of plugins not to load.

    Raises:
        PluginError: an allowed name is not installed, or is blocked as well.
    """
    found: list[tuple[PluginRecord, Callable[[], object]]] = []
    for entry in importlib.metadata.entry_points(group=PROJECT_NAME):
        distribution = entry.dist
        record = PluginRecord(
            name=entry.name,
            distribution=distribution.name if distribution else "(unknown)",
            version=distribution.version if distribution else "(unknown)",
        )
        record.is_named = allow is not None and record.matches(allow)
        if record.matches(block) or (allow is not None and not record.is_named):
            record.state = "blocked"
        found.append((record, entry.load))
    found.sort(key=lambda pair: pair[0].key)
    _check_names(allow or (), block, [record for record, _ in found])
    return found


def import_plugin(record: PluginRecord, load: Callable[[], object]) -> None:
    """Import a plugin's entry module and note how long that took.

    Raises:
        PluginError: the import raised.
    """
    start = time.perf_counter()
    try:
        record.plugin = load()
    # SystemExit too: a plugin that calls sys.exit() at import must not end the process.
    except (Exception, SystemExit) as error:
        raise record.error(f"{type(error).__name__}: {error}", hook="import") from error
    finally:
        record.import_s = time.perf_counter() - start


def introduce_plugin(record: PluginRecord, manager: pluggy.PluginManager) -> None:
    """Ask a plugin who it is, check its API range, register it and check its hooks.

    Raises:
        PluginError: any of these failed; the plugin is not registered then.
    """
    record.info = _ask_info(record)
    if problem := range_problem(record.info.api):
        raise record.error(problem, hook="deepinfer_plugin_info")
    if problem := unmarked_hook(record.plugin):
        raise record.error(problem, hook="register")
    try:
        manager.register(record.plugin, name=record.key)
    except (pluggy.PluginValidationError, ValueError) as error:
        # pluggy may have added some of the hooks before it met the bad one.
        if manager.has_plugin(record.key):
            manager.unregister(name=record.key)
        raise record.error(str(error), hook="register") from error
    try:
        record.hooks = _check_hooks(record, manager)
    except PluginError:
        manager.unregister(name=record.key)
        raise
    record.state = "loaded"


def host_info() -> HostInfo:
    """What probes are told of this process. Imports no torch."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = None
    return HostInfo(
        api_version=API_VERSION,
        core_version=__version__,
        torch_version=torch_version,
        python_version=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
    )


def _ask_info(record: PluginRecord) -> PluginInfo:
    hook = "deepinfer_plugin_info"
    function = getattr(record.plugin, hook, None)
    if function is None:
        raise record.error("is missing; every plugin says who it is", hook=hook)
    try:
        info = function()
    except Exception as error:
        raise record.error(f"{type(error).__name__}: {error}", hook=hook) from error
    if problem := record_problem(info, PluginInfo):
        raise record.error(problem, hook=hook)
    assert isinstance(info, PluginInfo)
    if not isinstance(info.api, str):
        raise record.error(f"api is {info.api!r}, not a version range", hook=hook)
    return info


def _check_hooks(record: PluginRecord, manager: pluggy.PluginManager) -> tuple[str, ...]:
    names: list[str] = []
    for caller in manager.get_hookcallers(record.plugin) or []:
        impls = [impl for impl in caller.get_hookimpls() if impl.plugin is record.plugin]
        if not caller.has_spec():
            if all(impl.optionalhook for impl in impls):
                continue
            raise record.error(unknown_hook(caller.name), hook="register")
        if any(impl.hookwrapper or impl.wrapper for impl in impls):
            raise record.error("hooks are asked plugin by plugin; wrappers cannot work",
                               hook=caller.name)  # fmt: skip
        names.append(caller.name)
    return tuple(sorted(names))


def _check_names(
    allow: Sequence[str], block: Sequence[str], records: Sequence[PluginRecord]
) -> None:
    installed = ", ".join(record.key for record in records) or "none"
    for name in allow:
        matching = [record for record in records if record.matches([name])]
        if not matching:
            raise PluginError(
                f"it was asked for but is not installed; installed: {installed}",
                distribution=name,
                hook="discovery",
            )
        if any(record.matches(block) for record in matching):
            raise PluginError(
                "it is both asked for and blocked; drop one of the two",
                distribution=name,
                hook="discovery",
            )


def _normalise(name: str) -> str:
    """`Deepinfer_Acme` and `acme` are one name: most distributions carry the prefix."""
    return re.sub(r"[-_.]+", "-", name).lower().removeprefix(f"{PROJECT_NAME}-")
