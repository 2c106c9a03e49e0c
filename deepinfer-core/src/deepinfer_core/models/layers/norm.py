"""Norms: layer norm, and RMS norm, alone or fused with the residual addition before it."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.ops.table import OpTable


class LayerNorm(nn.Module):
    """Layer norm with a bias (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, ops: OpTable, size: int, eps: float, *, dtype: str, role: str) -> None:
        super().__init__()
        self.weight = empty_parameter(size, dtype=dtype)
        self.bias = empty_parameter(size, dtype=dtype)
        self.eps = eps
        self.norm = ops.bind(
            "norm.layer", dtype=dtype, role=role, features=("bias",), hidden_size=size
        )

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] -> [T, C]."""
        y: Tensor = self.norm(x, self.weight, self.bias, self.eps)[0]
        return y


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(
        self, ops: OpTable, size: int, eps: float, *, dtype: str, role: str, residual: bool = False
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(size, dtype=dtype)
        self.eps = eps
        self.norm = ops.bind(
            "norm.rms",
            dtype=dtype,
            role=role,
            features=("residual",) if residual else (),
            hidden_size=size,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] -> [T, C]."""
        y: Tensor = self.norm(x, self.weight, self.eps)[0]
        return y

    def add_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add x to the residual stream and normalise the sum.

        Args:
            x: [T, C] output of the previous sublayer, or the embeddings.
            residual: [T, C]; None at the start of the model, where x is the stream itself.

        Returns:
            the normalised sum, and the sum.
        """
        y, total = self.norm(x, self.weight, self.eps, residual)
        return y, x if residual is None else total
