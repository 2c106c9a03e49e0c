"""Products with plain weights: torch's own, that is the vendor's library, over tiled weights."""

from __future__ import annotations

from deepinfer_core.plugin_api import Problem
from torch import Tensor
from torch.nn import functional as F

from deepinfer_ascend.kernels.formats import to_nz


def prepare(problem: Problem, weight: Tensor) -> Tensor:
    """The weight as the cube units read it."""
    del problem
    return to_nz(weight)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    return F.linear(x, weight, bias)
