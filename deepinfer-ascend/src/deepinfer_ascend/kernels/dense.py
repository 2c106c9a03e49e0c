"""Products with plain weights: torch's own, that is the vendor's library, over tiled weights."""

from __future__ import annotations

import torch
from deepinfer_core.plugin_api import Problem
from torch import Tensor
from torch.nn import functional as F

from deepinfer_ascend.kernels.formats import to_nz


def prepare(problem: Problem, weight: Tensor) -> Tensor:
    """The weight as the cube units read it."""
    del problem
    return to_nz(weight)


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.batched`."""
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    return F.linear(x, weight, bias)
