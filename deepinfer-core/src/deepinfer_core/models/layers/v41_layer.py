"""One layer of DeepSeek-V4.1."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v41_config import SharedCaches, V41Config
from deepinfer_core.models.layers.engram import Engram
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.hyper_connection import DelayedHyperConnection
from deepinfer_core.models.layers.moe import SparseMoE
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.shared_attention import SharedAttention
from deepinfer_core.models.layers.tail import Tail
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class V41Layer(nn.Module):
    """Perhaps the memory; attention, then experts, each behind hyper-connections and a norm."""

    def __init__(
        self, ops: OpTable, config: V41Config, layer: int, caches: SharedCaches, *, dtype: str
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.reads_rows = config.compress_ratios[layer] > 0
        self.engram = None
        if config.engram is not None and layer in config.engram.layers:
            self.engram = Engram(ops, config, layer, dtype=dtype)
        self.hc_attn = DelayedHyperConnection(ops, config, dtype=dtype, role="attn.hc")
        self.attn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="attn.norm")
        self.attn = self.build_attention(ops, config, layer, caches, dtype=dtype)
        self.hc_ffn = DelayedHyperConnection(ops, config, dtype=dtype, role="mlp.hc")
        self.ffn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="mlp.norm")
        self.ffn = SparseMoE(ops, size, config.moe, dtype=dtype)

    @staticmethod
    def build_attention(
        ops: OpTable, config: V41Config, layer: int, caches: SharedCaches, *, dtype: str
    ) -> WindowAttention:
        """The attention of a layer; those of a drafter have another."""
        return SharedAttention(ops, config, layer, caches, dtype=dtype)

    def forward(
        self,
        streams: Tensor,
        pre: Tensor,
        batch: ForwardBatch,
        cos_sin: Tensor,
        tail: Tail | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Streams [T, n, D], and with which weights [T, n] the next sublayer reads them.

        Args:
            tail: all tokens write to the caches, but only those of the tail go on.
        """
        u, post, mix, attn_pre = self.hc_attn.read_with(streams, pre)
        x = self.attn_norm(u)
        if tail is None:
            y = self.attn(x, batch.positions, cos_sin, batch.attention)
        else:
            q_latent = self.attn.write(x, batch.positions, cos_sin, batch.attention)
            x, q_latent, streams, post, mix, attn_pre = (
                tail.of(rows) for rows in (x, q_latent, streams, post, mix, attn_pre)
            )
            batch = tail.first
            y = self.attn.read(x, q_latent, batch.positions, cos_sin, batch.attention)
        streams = self.hc_attn.write(y, streams, post, mix)
        u, post, mix, ffn_pre = self.hc_ffn.read_with(streams, attn_pre)
        is_image = None if batch.images is None else batch.images.is_image
        y = self.ffn(self.ffn_norm(u), is_image=is_image)
        return self.hc_ffn.write(y, streams, post, mix), ffn_pre
