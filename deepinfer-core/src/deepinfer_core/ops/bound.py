"""`BoundOp`: a kernel in the place where a layer calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import PluginError
from deepinfer_core.ops.registry import describe_problem, needs_adapter, op_name, plan_key
from deepinfer_core.ops.spec import OpSpec
from deepinfer_core.plugin_api.kernel import KernelSpec, Problem
from deepinfer_core.plugin_api.target import load_target

if TYPE_CHECKING:
    from torch import Tensor

PlanFunction = Callable[[Problem, Any], object]
PrepareFunction = Callable[[Problem, "Tensor"], "Tensor"]


class BoundOp:
    """A kernel that was chosen for one problem; call it as the op's signature says."""

    __slots__ = ("fn", "on_failure", "plan_fn", "plan_key", "prepare_fn", "problem", "provider")

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        provider: str,
        problem: Problem,
        plan_fn: PlanFunction | None = None,
        prepare_fn: PrepareFunction | None = None,
    ) -> None:
        self.fn = fn
        self.provider = provider
        self.problem = problem
        self.plan_fn = plan_fn
        self.prepare_fn = prepare_fn
        self.plan_key = plan_key(provider, problem)
        """Equal for bound ops that can share one plan per step; the role does not count."""
        self.on_failure: Callable[[BoundOp, Exception], bool] | None = None
        """Puts another kernel in this one's place, if the exception lets it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.fn(*args, **kwargs)
        except Exception as error:
            if self.on_failure is None or not self.on_failure(self, error):
                raise
        if "plan" in kwargs:
            kwargs["plan"] = None  # it was of the other kernel; this one makes its own
        return self(*args, **kwargs)

    def become(self, other: BoundOp) -> None:
        """Be another kernel for the same problem from now on, for everybody who holds this."""
        self.fn, self.provider, self.plan_key = other.fn, other.provider, other.plan_key
        self.plan_fn, self.prepare_fn = other.plan_fn, other.prepare_fn
        self.on_failure = other.on_failure

    def prepare(self, weight: Tensor) -> Tensor:
        """The weight as the kernel wants it laid out, or the weight itself. Not for the step."""
        return weight if self.prepare_fn is None else self.prepare_fn(self.problem, weight)

    def __repr__(self) -> str:
        return f"BoundOp({describe_problem(self.problem)} -> {self.provider})"


def load_kernel(kernel: KernelSpec, spec: OpSpec, problem: Problem) -> BoundOp:
    """Import a kernel that was chosen.

    Raises:
        PluginError: it cannot be imported.
    """
    try:
        fn = load_target(kernel.target)
        plan_fn = load_target(kernel.plan) if kernel.plan else None
        prepare_fn = load_target(kernel.prepare) if kernel.prepare else None
    except Exception as error:
        raise PluginError(
            f"kernel {kernel.provider} of {op_name(kernel.op)} cannot be imported: "
            f"{type(error).__name__}: {error}; repair or block its plugin, "
            f"or name another provider in kernels=",
            hook=f"target {kernel.target}",
        ) from error
    if needs_adapter(kernel, spec) and spec.previous:
        fn = load_target(spec.previous)(fn)
    return BoundOp(
        fn, provider=kernel.provider, problem=problem, plan_fn=plan_fn, prepare_fn=prepare_fn
    )
