"""Selection of one kernel for one problem: pure, with a reason for every candidate.

Owns the order of rank: a person's override, then policies, then priority, then provider name.
Import order never matters. Knows no device and imports no kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from deepinfer_core.errors import PluginError, UnsupportedOpError
from deepinfer_core.ops.spec import OpSpec
from deepinfer_core.plugin_api.device import DeviceInfo
from deepinfer_core.plugin_api.kernel import PERMISSIONS, Caps, KernelSpec, Problem
from deepinfer_core.plugin_api.records import KernelPolicy


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """Everything but the problem that decides which kernel serves."""

    device: DeviceInfo
    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Op, `family.*` or `*` to providers in order of preference; the closest pattern counts."""
    policies: Sequence[KernelPolicy] = ()
    required_features: frozenset[str] = frozenset()
    """Of every kernel, such as `batch_invariant`."""
    strict: bool = False
    """Refuse reference kernels for hot ops on an accelerator."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """`plan_key` of kernels that failed -> why. Grows while the table is in use."""

    def override(self, op: str) -> tuple[str, ...]:
        """The providers that a person named for this op; empty if none."""
        for pattern in (op, f"{op.partition('.')[0]}.*", "*"):
            if pattern in self.overrides:
                return self.overrides[pattern]
        return ()

    def policy(self, problem: Problem) -> KernelPolicy | None:
        """The first policy for this op and role; an exact op name goes before a pattern."""
        matching = [
            policy
            for policy in self.policies
            if fnmatchcase(problem.op, policy.op) and fnmatchcase(problem.role, policy.role)
        ]
        return min(matching, key=lambda policy: policy.op != problem.op, default=None)


@dataclass(frozen=True, slots=True)
class OpChoice:
    """What was chosen for a problem, and why not the others."""

    op: str
    problem: Problem
    provider: str
    why: str
    rejected: tuple[tuple[str, str], ...]
    """(provider, reason), in order of rank, those that cannot serve last."""
    kernel: KernelSpec
    workspace_bytes: int
    is_reference_on_accelerator: bool
    """A hot op runs on the reference although the device is not the CPU."""


def select(
    spec: OpSpec, problem: Problem, kernels: Sequence[KernelSpec], rules: SelectionRules
) -> OpChoice:
    """Choose the kernel that serves a problem.

    Args:
        spec: of the problem's op.
        kernels: of any op; those of other ops are ignored.

    Raises:
        UnsupportedOpError: no kernel can serve, or none of those that the override names can.
            Holds one reason for each candidate.
    """
    candidates = [kernel for kernel in kernels if op_name(kernel.op) == problem.op]
    refusals = [(kernel, refusal(kernel, spec, problem, rules)) for kernel in candidates]
    able = [kernel for kernel, reason in refusals if reason is None]
    unable = sorted((kernel.provider, reason) for kernel, reason in refusals if reason is not None)

    named = rules.override(problem.op)
    chosen_from = [kernel for kernel in able if kernel.provider in named] if named else able
    if not chosen_from:
        raise UnsupportedOpError(
            describe_problem(problem), _reasons_for_none(named, candidates, able, unable)
        )
    policy = rules.policy(problem)
    preferred = policy.providers if policy else ()

    def rank(kernel: KernelSpec) -> tuple[int, int, int, str]:
        return (
            _position(named, kernel.provider),
            _position(preferred, kernel.provider),
            -kernel.priority,
            kernel.provider,
        )

    ranked = sorted(able, key=rank)
    best = ranked[0]
    if best.provider in named:
        why = "named in kernels="
    elif policy and best.provider in preferred:
        why = f"policy: {policy.reason}"
    else:
        why = f"priority {best.priority}"
    return OpChoice(
        op=problem.op,
        problem=problem,
        provider=best.provider,
        why=why,
        rejected=(*((k.provider, _lost(k, best, why)) for k in ranked[1:]), *unable),
        kernel=best,
        workspace_bytes=_ask(best, "workspace", problem) or 0,
        is_reference_on_accelerator=_is_slow_reference(best, spec, rules.device),
    )


def refusal(
    kernel: KernelSpec, spec: OpSpec, problem: Problem, rules: SelectionRules
) -> str | None:
    """Say why a kernel cannot serve a problem; None if it can.

    In the order caps, `supports`, workspace, so that a kernel's own functions only see problems
    that its caps cover; last, whether it failed.
    """
    reason = _version_refusal(kernel, spec) or caps_refusal(
        kernel.caps, problem, rules.device, rules.required_features
    )
    if reason is not None:
        return reason
    if rules.strict and _is_slow_reference(kernel, spec, rules.device):
        return f"strict: a reference kernel for a hot op on {rules.device.kind}"
    verdict = _ask(kernel, "supports", problem)
    if verdict is not None and not verdict:
        return getattr(verdict, "text", "its supports() says no, without a reason")
    wanted, has = _ask(kernel, "workspace", problem) or 0, rules.device.memory_bytes
    if has is not None and wanted > has:
        return f"needs {wanted:,} bytes of workspace, the device has {has:,}"
    return rules.failures.get(plan_key(kernel.provider, problem))


def caps_refusal(
    caps: Caps, problem: Problem, device: DeviceInfo, required: frozenset[str] = frozenset()
) -> str | None:
    """Say which capability is not listed; None if all are."""
    if "*" not in caps.device_kinds and device.kind not in caps.device_kinds:
        return f"serves devices {_words(caps.device_kinds)}, not {device.kind}"
    if reason := _arch_refusal(caps.arch, device.arch):
        return reason
    if problem.dtype not in caps.dtypes:
        return f"dtype {problem.dtype} is not one of {_words(caps.dtypes)}"
    if problem.kv_dtype not in (None, problem.dtype, *caps.kv_dtypes):
        return f"kv dtype {problem.kv_dtype} is not one of {_words(caps.kv_dtypes)}"
    if problem.scheme is not None and problem.scheme not in caps.schemes:
        return f"scheme {problem.scheme} is not one of {_words(caps.schemes)}"
    for name, size in problem.shape:
        if name in caps.dims and size not in caps.dims[name]:
            return f"{name} {size} is not one of {_words(caps.dims[name])}"
    missing = (problem.features - PERMISSIONS | required) - caps.features
    return f"does not claim {_words(missing)}" if missing else None


def describe_problem(problem: Problem) -> str:
    """One line for people: op, role, and what is asked of it."""
    role = f" as {problem.role}" if problem.role else ""
    return f"{problem.op}{role} ({problem_facts(problem)})"


def problem_facts(problem: Problem) -> str:
    """Dtypes, sizes and features, in words."""
    parts = [problem.dtype]
    if problem.kv_dtype is not None:
        parts.append(f"kv_dtype={problem.kv_dtype}")
    if problem.scheme is not None:
        parts.append(f"scheme={problem.scheme}")
    parts.extend(f"{name}={size}" for name, size in problem.shape)
    parts.extend(sorted(problem.features))
    return ", ".join(parts)


def plan_key(provider: str, problem: Problem) -> str:
    """Everything that a plan may depend on, besides the step's batch."""
    sizes = ",".join(f"{name}={size}" for name, size in problem.shape)
    features = ",".join(sorted(problem.features))
    dtypes = f"{problem.dtype}/{problem.kv_dtype}/{problem.scheme}"
    return f"{problem.op}|{provider}|{dtypes}|{sizes}|{features}"


def op_name(claim: str) -> str:
    """`attn.paged` of `attn.paged@1`."""
    return claim.partition("@")[0]


def op_major(claim: str) -> int:
    """1 of `attn.paged@1`."""
    return int(claim.partition("@")[2])


def needs_adapter(kernel: KernelSpec, spec: OpSpec) -> bool:
    """Whether the kernel implements the previous major."""
    return op_major(kernel.op) == spec.major - 1


def _ask(kernel: KernelSpec, question: Literal["supports", "workspace"], problem: Problem) -> Any:
    """Call a kernel's own pure function, if it has one."""
    function = getattr(kernel, question)
    if function is None:
        return None
    try:
        return function(problem)
    except Exception as error:
        raise PluginError(
            f"kernel {kernel.provider} of {kernel.op} raised {type(error).__name__}: {error}; "
            "repair or block its plugin",
            hook=f"{question}({describe_problem(problem)})",
        ) from error


def _version_refusal(kernel: KernelSpec, spec: OpSpec) -> str | None:
    major = op_major(kernel.op)
    if major == spec.major or (needs_adapter(kernel, spec) and spec.previous is not None):
        return None
    served = f"@{spec.major}" + (f" and @{spec.major - 1}" if spec.previous else "")
    remedy = "upgrade deepinfer-core" if major > spec.major else "upgrade the plugin"
    return f"implements {kernel.op}, core serves {served}; {remedy}"


def _arch_refusal(window: tuple[str | None, str | None], arch: str | None) -> str | None:
    low, high = window
    if low is None and high is None:
        return None
    shown = f"{low or 'any'} to {high or 'any'}"
    if arch is None:
        return f"needs arch {shown}, the device does not say its own"
    key = _arch_key(arch)
    too_low = low is not None and key < _arch_key(low)
    too_high = high is not None and key > _arch_key(high)
    return f"arch {arch} is not within {shown}" if too_low or too_high else None


def _arch_key(arch: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers compare as numbers and letters as letters: 9.0 < 10.0, 910 < 910b < 910b3."""
    pieces = re.findall(r"\d+|[a-z]+", arch.lower())
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pieces)


def _is_slow_reference(kernel: KernelSpec, spec: OpSpec, device: DeviceInfo) -> bool:
    return spec.runs_in != "few_steps" and kernel.priority <= 0 and device.kind != "cpu"


def _position(providers: Sequence[str], provider: str) -> int:
    return providers.index(provider) if provider in providers else len(providers)


def _lost(kernel: KernelSpec, best: KernelSpec, why: str) -> str:
    return f"can serve, ranks after {best.provider} ({why}; own priority {kernel.priority})"


def _reasons_for_none(
    named: Sequence[str],
    candidates: Sequence[KernelSpec],
    able: Sequence[KernelSpec],
    unable: Sequence[tuple[str, str]],
) -> list[tuple[str, str]]:
    if not candidates:
        return [("-", "no plugin offers this op")]
    if not named:
        return list(unable)
    offered = {kernel.provider for kernel in candidates}
    absent = [(name, "named, but offers no kernel of this op") for name in named]
    return [
        *(entry for entry in absent if entry[0] not in offered),
        *((provider, f"named, but {reason}") for provider, reason in unable if provider in named),
        *((provider, reason) for provider, reason in unable if provider not in named),
        *((kernel.provider, "can serve, but kernels= names others") for kernel in able),
    ]


def _words(values: Sequence[object] | frozenset[str]) -> str:
    return ", ".join(sorted(str(value) for value in values)) or "(none)"
