"""`OpTable`: selection once at load, plain calls afterwards.

Layers bind their ops at construction and keep the `BoundOp`. The table then freezes, so that
nothing is selected, imported or looked up in a step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepinfer_core.errors import ConfigError, EngineError, UnsupportedOpError
from deepinfer_core.ops.bound import BoundOp, load_kernel
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.failures import KernelFailures
from deepinfer_core.ops.registry import (
    OpChoice,
    SelectionRules,
    select,
)
from deepinfer_core.ops.spec import OP_SPECS, OpSpec
from deepinfer_core.parallel.mesh import ALONE, Mesh
from deepinfer_core.plugin_api.device import DeviceInfo
from deepinfer_core.plugin_api.kernel import FEATURES, KernelSpec, Problem
from deepinfer_core.plugin_api.records import KernelPolicy
from deepinfer_core.plugin_api.target import load_target

logger = logging.getLogger(__name__)

REFERENCE_PRIORITY = 0
"""Of the quick kernels that core brings itself; plugins' are above."""


class OpTable:
    """Binds problems to kernels and remembers the choices. Made by `make_op_table`."""

    def __init__(
        self,
        kernels: Sequence[KernelSpec],
        specs: Mapping[str, OpSpec],
        rules: SelectionRules,
        mesh: Mesh = ALONE,
    ) -> None:
        self.mesh = mesh
        """Among whose ranks the layers that bind here are divided."""
        self._kernels = kernels
        self._specs = specs
        self._failures = KernelFailures()
        self._rules = replace(rules, failures=self._failures)
        self._bound: dict[Problem, BoundOp] = {}
        self._choices: dict[Problem, OpChoice] = {}
        self._is_frozen = False

    def on(self, mesh: Mesh) -> OpTable:
        """A table of the same kernels and rules, nothing bound yet, for one rank of a mesh."""
        return OpTable(self._kernels, self._specs, self._rules, mesh)

    def remember_failures(self, cache_dir: str | None, setup: Mapping[str, Any]) -> None:
        """Pass over kernels that failed to compile at an earlier start; before anything is bound.

        Args:
            cache_dir: as in `device.cache_dir`.
            setup: whatever may let a kernel compile after all, such as versions.
        """
        device = self._rules.device
        self._failures.remember(cache_dir, {**setup, device.kind: device.arch})

    def bind(
        self,
        op: str,
        *,
        dtype: str,
        role: str = "",
        kv_dtype: str | None = None,
        features: Iterable[str] = (),
        scheme: str | None = None,
        **shape: int,
    ) -> BoundOp:
        """Choose the kernel for a layer's problem and import it. Equal problems share one.

        Args:
            op: name without major, such as `attn.paged`.
            dtype: of the activations, such as `bfloat16`.
            role: where in the model, such as `attn.qkv`.
            features: optional features that the layer will use.
            shape: named static sizes, such as `head_dim=64`.

        Raises:
            UnsupportedOpError: nothing can serve, or nothing of what was named; with all reasons.
            PluginError: the chosen kernel cannot be imported.
            EngineError: the problem is new and the table frozen, or there is no such op or feature.
        """
        problem = Problem(
            op=op,
            dtype=dtype,
            shape=tuple(sorted(shape.items())),
            kv_dtype=kv_dtype,
            features=frozenset(features),
            scheme=scheme,
            role=role,
        )
        return self.bind_problem(problem)

    def bind_problem(self, problem: Problem) -> BoundOp:
        """As `bind`, for a problem that is put together already."""
        if problem not in self._bound:
            if self._is_frozen:
                raise EngineError(
                    f"op {problem.op} bound after the op table froze; bind at construction"
                )
            self._bound[problem] = self._select(problem)
        return self._bound[problem]

    def bind_fused(
        self, op: str, *, dtype: str, role: str, features: Iterable[str] = (), **shape: int
    ) -> BoundOp | None:
        """Bind an op that stands for several others, if a plugin has a kernel for it.

        Returns:
            None: the layer is to run the others one after another, as quick kernels of each beat
            a reference of the whole.
        """
        problem = Problem(
            op=op,
            dtype=dtype,
            shape=tuple(sorted(shape.items())),
            features=frozenset(features),
            role=role,
        )
        try:
            return self.bind_problem(problem) if self.beats_reference(problem) else None
        except UnsupportedOpError:
            if op in self._rules.overrides:
                raise
            return None

    def bind_alternative(self, to: BoundOp, op: str, **shape: int) -> BoundOp | None:
        """Bind another op for the problem of a bound one; the layer may use either in a step.

        Args:
            to: whose dtype, features, role and sizes are asked of the other, too.
            op: name of the other.
            shape: sizes beyond those.

        Returns:
            None where bits must not depend on which of the two serves (`batch_invariant`), where
            nothing can serve, and where a reference would take work from a plugin's kernel.

        Raises:
            UnsupportedOpError: what was named for this very op cannot serve.
        """
        sizes = dict(to.problem.shape) | shape
        problem = replace(to.problem, op=op, shape=tuple(sorted(sizes.items())))
        if "batch_invariant" in self._rules.required_features:
            return None
        try:
            if self.beats_reference(to.problem) and not self.beats_reference(problem):
                return None
            return self.bind_problem(problem)
        except UnsupportedOpError:
            if op in self._rules.overrides:
                raise
            return None

    def beats_reference(self, problem: Problem) -> bool:
        """Whether a kernel of a plugin would serve a problem; binds nothing.

        Raises:
            UnsupportedOpError: nothing can serve, or nothing of what was named.
        """
        choice = select(self._specs[problem.op], problem, self._kernels, self._rules)
        return choice.kernel.priority > REFERENCE_PRIORITY

    def freeze(self) -> None:
        """Refuse new problems; those that are bound may be bound again. Idempotent.

        Says once which ops run on a slow reference, or on one whose bits were not proven.
        """
        if self._is_frozen:
            return
        self._is_frozen = True
        self._warn_of_unproven_bits(self._choices.values())
        slow = sorted({c.op for c in self._choices.values() if c.is_reference_on_accelerator})
        if slow:
            logger.warning(
                "reference kernels serve %s on %s: correct but slow; "
                "see `deepinfer kernels explain`, or refuse them with strict=True",
                ", ".join(slow),
                self._rules.device.kind,
            )

    def _warn_of_unproven_bits(self, choices: Iterable[OpChoice]) -> None:
        """Torch's own kernels may sum up in another order for another number of rows."""
        is_asked_for = "batch_invariant" in self._rules.required_features
        if not is_asked_for or self._rules.device.kind == "cpu":
            return
        ops = sorted({c.op for c in choices if c.kernel.priority <= REFERENCE_PRIORITY})
        if ops:
            logger.warning(
                "reference kernels serve %s on %s: that their bits do not depend on the batch was "
                "proven on the CPU only; `deepinfer verify` tells whether they do",
                ", ".join(ops), self._rules.device.kind,
            )  # fmt: skip

    def choices(self) -> list[OpChoice]:
        """Every selection so far, in order of binding."""
        return list(self._choices.values())

    def planners(self) -> list[BoundOp]:
        """Bound ops whose kernel plans, one for each distinct `plan_key`."""
        by_key = {bound.plan_key: bound for bound in self._bound.values() if bound.plan_fn}
        return list(by_key.values())

    def _select(self, problem: Problem) -> BoundOp:
        spec = self._specs.get(problem.op)
        if spec is None:
            raise EngineError(f"no op is named {problem.op}; known: {', '.join(self._specs)}")
        if unknown := problem.features - FEATURES:
            raise EngineError(f"op {problem.op} bound with unknown features {sorted(unknown)}")
        choice = select(spec, problem, self._kernels, self._rules)
        bound = load_kernel(choice.kernel, spec, problem)
        if choice.kernel.compile_failure is not None:
            bound.on_failure = self._replace
        self._choices[problem] = choice
        return bound

    def _replace(self, failed: BoundOp, error: Exception) -> bool:
        """Let the next in rank serve wherever a kernel does not compile for a problem.

        Returns:
            False: the error says anything else.

        Raises:
            UnsupportedOpError: there is no other, or this one was named.
        """
        kernel = self._choices[failed.problem].kernel
        # A weight that was laid out for one kernel is lost to the others.
        if failed.prepare_fn is not None or kernel.compile_failure is None:
            return False
        what: str | None = load_target(kernel.compile_failure)(error)
        if what is None:
            return False
        key = failed.plan_key
        self._failures.add(key, what)
        for problem, bound in self._bound.items():
            if bound.plan_key == key:
                bound.become(self._select(problem))
        self._warn_of_unproven_bits([self._choices[failed.problem]])
        logger.warning(
            "kernel %s of %s %s; %s serves instead",
            kernel.provider, kernel.op, self._failures[key], failed.provider,
        )  # fmt: skip
        return True


def make_op_table(
    kernels: Sequence[KernelSpec],
    *,
    device: DeviceInfo,
    overrides: Mapping[str, str | tuple[str, ...]] | None = None,
    policies: Sequence[KernelPolicy] = (),
    batch_invariant: bool = False,
    deterministic: bool = False,
    strict: bool = False,
    specs: Mapping[str, OpSpec] = OP_SPECS,
) -> OpTable:
    """Make the table that a model's layers bind against.

    Args:
        kernels: what plugins and core offer on this device.
        overrides: op, `family.*` or `*` to a provider, or to several in order of preference.
        policies: preferences of plugins, first match counts.
        batch_invariant, deterministic: use only kernels that claim it.
        strict: refuse reference kernels for hot ops on an accelerator.
        specs: the known ops.

    Raises:
        ConfigError: an override names an op or a provider that does not exist.
    """
    named = {pattern: provider_names(value) for pattern, value in (overrides or {}).items()}
    _check_overrides(named, kernels, specs)
    wanted = {"batch_invariant": batch_invariant, "deterministic": deterministic}
    rules = SelectionRules(
        device=device,
        overrides=named,
        policies=policies,
        required_features=frozenset(name for name, is_on in wanted.items() if is_on),
        strict=strict,
    )
    return OpTable(kernels, specs, rules)


def provider_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """The providers of one override, of which there may be one or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def _check_overrides(
    named: Mapping[str, tuple[str, ...]],
    kernels: Sequence[KernelSpec],
    specs: Mapping[str, OpSpec],
) -> None:
    offered = {kernel.provider for kernel in kernels}
    patterns = {"*", *specs, *(f"{spec.family}.*" for spec in specs.values())}
    for pattern, providers in named.items():
        if pattern not in patterns:
            raise ConfigError(
                "no such op",
                field="device.kernels",
                value=pattern,
                allowed=", ".join(sorted(patterns)),
            )
        for provider in providers:
            if provider not in offered:
                raise ConfigError(
                    f"no plugin offers this provider (asked for {pattern}); "
                    "`deepinfer plugins` says which plugins failed",
                    field="device.kernels",
                    value=provider,
                    allowed=", ".join(sorted(offered)),
                )


def reference_table(**options: Any) -> OpTable:
    """A table of the built-in kernels alone, on the CPU.

    Args:
        options: as for `make_op_table`, without `kernels` and `device`.
    """
    return make_op_table(reference_kernels(), device=DeviceInfo(kind="cpu"), **options)
