"""A trial: one kernel on one case in one dtype. What every law is tried on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import UnsupportedOpError
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.registry import op_name
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import KernelSpec
from deepinfer_core.plugin_api.kernel import Numerics
from deepinfer_core.testing.case import Call, Case, Maker
from deepinfer_core.testing.compare import assert_close
from deepinfer_core.testing.subject import Subject


class NotPossibleError(Exception):
    """This machine lacks what a check needs; says what."""


class RefusedError(Exception):
    """The kernel itself, in `supports` or `workspace`, refuses a case that its caps cover."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Binds the kernel and builds the case's calls on the subject's device."""

    subject: Subject
    kernel: KernelSpec
    case: Case
    dtype: str

    @property
    def numerics(self) -> Numerics:
        return self.kernel.numerics

    def bind(self) -> BoundOp:
        """The kernel as a layer with the case's problem gets it, without anything to fall back on.

        Raises:
            RefusedError: the kernel refuses.
            PluginError: it cannot be imported.
        """
        case, table = self.case, make_op_table([self.kernel], device=self.subject.device)
        sizes: dict[str, Any] = dict(case.sizes)
        try:
            return table.bind(
                op_name(self.kernel.op),
                dtype=self.dtype,
                features=case.features,
                scheme=case.scheme,
                **sizes,
            )
        except UnsupportedOpError as error:
            raise RefusedError("; ".join(reason for _, reason in error.reasons)) from error

    def maker(self, seed: int = 0, *, strided: bool = False) -> Maker:
        dtype = getattr(torch, self.dtype)
        # Integer ops have no rows of floats; what they are given does not matter to them.
        floating = dtype if dtype.is_floating_point else torch.float32
        return Maker(floating, self.subject.runtime.torch_device, seed=seed, strided=strided)

    def call(self, num_tokens: int, seed: int = 0, *, strided: bool = False) -> Call:
        """Equal arguments give equal calls in memory of their own."""
        return self.case.build(self.maker(seed, strided=strided), num_tokens)


def run(bound: BoundOp, kwargs: Mapping[str, Any], *, is_prepared: bool = True) -> Any:
    """Call a kernel as a layer does, with this step's plan if it makes one.

    Args:
        is_prepared: whether the kernel gets the weight as it prepared it, if it does.
    """
    spec = OP_SPECS[bound.problem.op]
    weight = spec.weight
    if weight is not None and is_prepared:
        kwargs = {**kwargs, weight: bound.prepare(kwargs[weight])}
    meta = kwargs.get("meta")
    if isinstance(meta, AttentionMeta) and "plan" in spec.signature.parameters:
        meta.plans.clear()
        return bound(**kwargs, plan=meta.plan_for(bound))
    return bound(**kwargs)


def judge(outputs: Sequence[Tensor], numerics: Numerics, call: Call) -> None:
    """Compare observed outputs with what a call expects.

    Raises:
        AssertionError: they are wrong.
    """
    if call.check is not None:
        call.check(outputs)
        return
    truth = call.truth()
    assert len(outputs) == len(truth), f"{len(outputs)} outputs, expected {len(truth)}"
    for number, (output, expected) in enumerate(zip(outputs, truth, strict=True)):
        assert_close(output, expected, numerics, f"output {number}")
