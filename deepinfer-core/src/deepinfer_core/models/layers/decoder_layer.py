"""One layer of a pre-norm decoder: which attention and which feed-forward layer it has."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.layers.attention import Attention
from deepinfer_core.models.layers.latent_attention import LatentAttention
from deepinfer_core.models.layers.mlp import GatedMLP
from deepinfer_core.models.layers.moe import SparseMoE
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class DecoderLayer(nn.Module):
    """Attention, then a dense or sparse feed-forward layer, each behind a norm."""

    def __init__(self, ops: OpTable, config: DecoderConfig, layer: int, *, dtype: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = RMSNorm(
            ops, size, eps, dtype=dtype, role="attn.norm", residual=layer > 0
        )
        self.self_attn: nn.Module
        if config.latent is not None:
            self.self_attn = LatentAttention(ops, config, config.latent, layer, dtype=dtype)
        else:
            self.self_attn = Attention(ops, config, layer, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(
            ops, size, eps, dtype=dtype, role="mlp.norm", residual=True
        )
        self.mlp: nn.Module
        if config.moe is not None and layer in config.moe.layers:
            self.mlp = SparseMoE(ops, size, config.moe, dtype=dtype)
        else:
            self.mlp = GatedMLP(
                ops, size, config.intermediate_size, dtype=dtype, bias=config.mlp_bias
            )

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> tuple[Tensor, Tensor]:
        """Give this layer's output, not yet added to the residual stream, and the stream."""
        x, residual = self.input_layernorm.add_norm(x, residual)
        x = self.self_attn(x, positions, cos_sin, attention)
        x, residual = self.post_attention_layernorm.add_norm(x, residual)
        return self.mlp(x), residual
