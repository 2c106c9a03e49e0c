"""Whether what a plugin registers and returns is what the contract asks for.

Pure functions from an object to a complaint, or None. Knows no host and no entry point.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import TypeVar

from deepinfer_core.ops import OP_SPECS
from deepinfer_core.plugin_api import (
    FEATURES,
    Caps,
    CommandSpec,
    DeviceInfo,
    DeviceRuntime,
    GrammarBackendSpec,
    Issue,
    KernelPolicy,
    KernelSpec,
    KVConnectorSpec,
    ModelSpec,
    ProposerSpec,
    QuantSchemeSpec,
    RecipeSpec,
    StageSpec,
    StatLoggerSpec,
    TargetRecord,
    hookspecs,
    target_problem,
)
from deepinfer_core.plugin_api.markers import PROJECT_NAME

T = TypeVar("T")

HOOKS: tuple[str, ...] = tuple(
    name for name in vars(hookspecs) if name.startswith(f"{PROJECT_NAME}_")
)
"""Names of all hooks."""

TARGET_HOOKS: Mapping[type[TargetRecord], str] = {
    ModelSpec: "deepinfer_models",
    RecipeSpec: "deepinfer_recipes",
    CommandSpec: "deepinfer_commands",
    StageSpec: "deepinfer_logits_stages",
    QuantSchemeSpec: "deepinfer_quant_schemes",
    ProposerSpec: "deepinfer_proposers",
    GrammarBackendSpec: "deepinfer_grammar_backends",
    KVConnectorSpec: "deepinfer_kv_connectors",
    StatLoggerSpec: "deepinfer_stat_loggers",
}
"""Type of a record with a target -> the hook that lists such records."""

_OP_CLAIM = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+@[0-9]+")
_PROVIDER = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
_DEVICE_KIND = re.compile(r"[a-z][a-z0-9_]*")


def unmarked_hook(plugin: object) -> str | None:
    """A function that has a hook's name but not its mark, which would silently do nothing."""
    if not isinstance(plugin, ModuleType):
        return None
    for name in HOOKS:
        function = vars(plugin).get(name)
        if inspect.isfunction(function) and not hasattr(function, f"{PROJECT_NAME}_impl"):
            return f"{name} is not marked with @hookimpl"
    return None


def unknown_hook(name: str) -> str:
    """The complaint about a hook that the contract does not have."""
    # The common prefix would make any two names look alike.
    prefix = f"{PROJECT_NAME}_"
    ends = [hook.removeprefix(prefix) for hook in HOOKS]
    close = get_close_matches(name.removeprefix(prefix), ends, n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"hooks are {', '.join(HOOKS)}"
    return f"implements unknown hook {name}; {hint}"


def records_of(answer: object, expected: type[T]) -> list[T]:
    """Turn a hook's answer into a list of records; None means none.

    Raises:
        TypeError: not an iterable of the expected records, or a record is malformed.
    """
    if answer is None:
        return []
    if isinstance(answer, (str, expected)) or not isinstance(answer, Iterable):
        raise TypeError(f"returned {answer!r}, not an iterable of {expected.__name__}")
    records = list(answer)
    for record in records:
        if problem := record_problem(record, expected):
            raise TypeError(problem)
    return records


def runtime_of(answer: object) -> list[DeviceRuntime]:
    """As `records_of`, for the one hook that returns an object instead of records."""
    if answer is None:
        return []
    if not isinstance(answer, DeviceRuntime):
        raise TypeError(f"returned {answer!r}, which is not a DeviceRuntime")
    return [answer]


def claim_key(kernel: KernelSpec) -> str:
    """What may be claimed once only."""
    return f"provider {kernel.provider} of {kernel.op}"


def refuse_taken(keys: Iterable[str], owners: Mapping[str, str]) -> None:
    """Check that a plugin's keys are new.

    Args:
        owners: keys so far, each with the plugin that has it.

    Raises:
        ValueError: two records have one key; names both plugins where there are two.
    """
    own: set[str] = set()
    for key in keys:
        if key in owners:
            raise ValueError(f"{key} is already taken by plugin {owners[key]}; block one of them")
        if key in own:
            raise ValueError(f"{key} is listed twice")
        own.add(key)


def record_problem(record: object, expected: type) -> str | None:
    """Say what is wrong with a record that a hook returned; None if nothing is."""
    if not isinstance(record, expected):
        return f"returned {record!r}, which is not a {expected.__name__}"
    match record:
        case KernelSpec():
            reason = _kernel_problem(record)
        case DeviceInfo():
            is_word = isinstance(record.kind, str) and _DEVICE_KIND.fullmatch(record.kind)
            reason = None if is_word else f"device kind {record.kind!r} is not a lower-case word"
        case TargetRecord():
            reason = target_problem(record.target) if record.name else "has no name"
        case KernelPolicy():
            is_text = isinstance(record.providers, str)
            reason = "providers must be a tuple of names, not one string" if is_text else None
        case Issue():
            is_known = record.severity in ("error", "warning", "note")
            reason = None if is_known else f"severity {record.severity!r} is not known"
        case _:
            reason = None
    return f"{_label(record)}: {reason}" if reason else None


def _kernel_problem(kernel: KernelSpec) -> str | None:
    if not isinstance(kernel.op, str) or not _OP_CLAIM.fullmatch(kernel.op):
        return f"op {kernel.op!r} is not of the form 'family.name@major'"
    name = kernel.op.partition("@")[0]
    if name not in OP_SPECS:
        close = get_close_matches(name, OP_SPECS, n=1)
        hint = f"did you mean {close[0]}?" if close else "upgrade deepinfer-core if it is new"
        return f"core knows no op {name}; {hint}"
    if not isinstance(kernel.provider, str) or not _PROVIDER.fullmatch(kernel.provider):
        return f"provider {kernel.provider!r} is not of the form 'vendor.name'"
    if not isinstance(kernel.caps, Caps):
        return f"caps is {kernel.caps!r}, not Caps(...)"
    return _caps_problem(kernel.caps) or _targets_problem(kernel)


def _caps_problem(caps: Caps) -> str | None:
    for field in ("device_kinds", "dtypes", "kv_dtypes", "features", "schemes"):
        value = getattr(caps, field)
        if isinstance(value, str) or not isinstance(value, Iterable):
            return f"caps.{field} is {value!r}, not a collection of names"
    unknown = sorted(frozenset(caps.features) - FEATURES)
    return f"caps.features has unknown {', '.join(unknown)}" if unknown else None


def _targets_problem(kernel: KernelSpec) -> str | None:
    targets = [kernel.target, *(t for t in (kernel.plan, kernel.fake) if t is not None)]
    problems = (target_problem(target) for target in targets)
    return next((problem for problem in problems if problem), None)


def _label(record: object) -> str:
    """Enough to find the record in the plugin's source."""
    match record:
        case KernelSpec():
            return f"KernelSpec {record.provider} of {record.op}"
        case TargetRecord():
            return f"{type(record).__name__} {record.name!r}"
        case _:
            return repr(record)
