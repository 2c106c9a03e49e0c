"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.layers.linear import Linear, MergedLinear, Shard
from deepinfer_core.ops.table import OpTable


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202).

    Args:
        down: how the last matrix is divided, by its inputs in any case.
    """

    def __init__(
        self,
        ops: OpTable,
        hidden_size: int,
        intermediate_size: int,
        *,
        dtype: str,
        bias: bool,
        limit: float | None = None,
        down: Shard = "in",
    ) -> None:
        super().__init__()
        share = ops.mesh.share(intermediate_size, "intermediate features")
        self.gate_up_proj = MergedLinear(
            ops,
            hidden_size,
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            dtype=dtype,
            role="mlp.gate_up",
            bias=bias,
            shares={"gate_proj": share, "up_proj": share},
        )
        self.down_proj = Linear(
            ops, intermediate_size, hidden_size, dtype=dtype, role="mlp.down", bias=bias, shard=down
        )
        self.limit = limit
        self.silu_mul = ops.bind(
            "act.silu_mul",
            dtype=dtype,
            role="mlp.act",
            features=() if limit is None else ("limit",),
            intermediate_size=share.size_of(intermediate_size),
        )

        self.fused = None
        if self.gate_up_proj.gemm.prepare_fn is None:  # the weight stays as it is
            self.fused = ops.bind_fused(
                "gemm.gated",
                dtype=dtype,
                role="mlp.gate_up",
                features=(*(("bias",) if bias else ()), *(() if limit is None else ("limit",))),
                in_features=hidden_size,
                intermediate_size=share.size_of(intermediate_size),
            )

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] -> [T, C]."""
        y: Tensor = self.down_proj(self._gated(x))
        return y

    def _gated(self, x: Tensor) -> Tensor:
        both, gated = self.gate_up_proj, self.fused
        y: Tensor = (
            self.silu_mul(both(x), self.limit)
            if gated is None or both.scale is not None
            else gated(x, both.weight, both.bias, self.limit)
        )
        return y
