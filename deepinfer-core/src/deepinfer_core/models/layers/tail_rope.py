"""Rotary embedding of the last dims of a head, by pairs of neighbors."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.table import OpTable


class TailRope:
    """Rotates the last `rotary_dim` dims of heads of `head_dim`; the others pass."""

    def __init__(
        self, ops: OpTable, head_dim: int, rotary_dim: int, *, dtype: str, role: str
    ) -> None:
        self.sizes = (head_dim - rotary_dim, rotary_dim)
        self.rotate = ops.bind(
            "rope.apply",
            dtype=dtype,
            role=role,
            features=("interleaved", "inverse"),
            head_dim=rotary_dim,
            rotary_dim=rotary_dim,
        )

    def __call__(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, *, inverse: bool = False
    ) -> Tensor:
        """[T, H, head_dim] at positions [T] int64 -> the same, rotated."""
        passing, turning = x.split_with_sizes(self.sizes, dim=2)
        turned, _ = self.rotate(
            turning, None, positions, cos_sin, layout="interleaved", inverse=inverse
        )
        return torch.cat((passing, turned), dim=2)
