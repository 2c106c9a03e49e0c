"""A norm and the product behind it, as one kernel where the device has one that is quicker."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_core.models.layers.linear import MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.ops.table import OpTable


class NormedLinear:
    """`norm.add_norm`, then `linear`, or the gated product that `linear` is the weight of.

    Owns no parameter: both layers stay where checkpoints name them.

    Args:
        is_gated: the weight has gates, then as many ups.
        limit: as in `act.silu_mul`.
    """

    def __init__(
        self,
        ops: OpTable,
        norm: RMSNorm,
        linear: MergedLinear,
        *,
        is_gated: bool = False,
        limit: float | None = None,
    ) -> None:
        self._norm, self._linear = norm, linear
        self._options: dict[str, Any] = {"is_gated": True, "limit": limit} if is_gated else {}
        problem = linear.gemm.problem
        features = {
            *problem.features,
            *({"residual"} & norm.norm.problem.features),
            *({"gated"} if is_gated else ()),
            *({"limit"} if limit is not None else ()),
        }
        self._fused = None
        if linear.gemm.prepare_fn is None:  # the weight stays as it is
            self._fused = ops.bind_fused(
                "gemm.normed",
                dtype=problem.dtype,
                role=problem.role,
                features=features,
                **dict(problem.shape),
            )

    @property
    def is_fused(self) -> bool:
        """Whether `__call__` may be used: there is a kernel, and the weight is no codes."""
        return self._fused is not None and self._linear.scale is None

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """[T, C] and the residual stream -> what the product gives, and the stream with x."""
        assert self._fused is not None
        norm, linear = self._norm, self._linear
        y, total = self._fused(
            x, linear.weight, norm.weight, norm.eps, residual, linear.bias, **self._options
        )
        return y, x if residual is None else total
