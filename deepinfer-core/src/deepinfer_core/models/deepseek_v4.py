"""DeepSeek-V4, Flash and Pro: hybrid attention, hyper-connections, hashed and routed experts.

DeepSeek-V4 (2026), section 2. Parameters have the released names, see `stored_name`; layers that
predict further tokens (`mtp.*`) are not part of this model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import (
    LayerCaches,
    V4Config,
    plan_caches,
    read_v4_config,
)
from deepinfer_core.models.layers.hybrid_attention import HybridAttention, WindowAttention
from deepinfer_core.models.layers.hyper_connection import (
    HyperConnection,
    HyperHead,
    stream_mean,
)
from deepinfer_core.models.layers.moe import SparseMoE
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.stream_model import StreamModel
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch


class V4Layer(nn.Module):
    """Attention, then experts, each behind hyper-connections and a norm."""

    def __init__(
        self, ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.compresses = config.compress_ratios[layer] > 0
        self.hc_attn = HyperConnection(ops, config, dtype=dtype, role="attn.hc")
        self.attn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="attn.norm")
        self.attn = self.build_attention(ops, config, layer, caches, dtype=dtype)
        self.hc_ffn = HyperConnection(ops, config, dtype=dtype, role="mlp.hc")
        self.ffn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="mlp.norm")
        num_hashed = config.vocab_size if layer in config.moe.hash_layers else None
        self.ffn = SparseMoE(ops, size, config.moe, dtype=dtype, hashed_vocab=num_hashed)

    @staticmethod
    def build_attention(
        ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> WindowAttention:
        """The attention of a layer; those of a drafter have another."""
        return HybridAttention(ops, config, layer, caches, dtype=dtype)

    def forward(
        self,
        streams: Tensor,
        input_ids: Tensor | None,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """[T, n, D] -> [T, n, D]."""
        u, post, mix = self.hc_attn.read(streams)
        y = self.attn(self.attn_norm(u), positions, cos_sin, attention)
        streams = self.hc_attn.write(y, streams, post, mix)
        u, post, mix = self.hc_ffn.read(streams)
        y = self.ffn(self.ffn_norm(u), input_ids)
        return self.hc_ffn.write(y, streams, post, mix)


class DeepseekV4(StreamModel):
    """A window and compressed rows, four residual streams, experts hashed by token or routed.

    Args and errors are those of `CausalModel`.
    """

    kv_formats = ("584+132", "584+68")

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str) -> None:
        super().__init__(config, ops, dtype=dtype)
        self.config = config
        self._layer_kvs, caches = plan_caches(config, dtype)
        self.layers = nn.ModuleList(
            V4Layer(ops, config, layer, caches[layer], dtype=dtype)
            for layer in range(config.num_layers)
        )
        self.hc_head = HyperHead(ops, config, dtype=dtype)

    @classmethod
    def read_config(cls, raw: RawConfig) -> V4Config:
        """See `CausalModel.read_config`."""
        return read_v4_config(raw)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes the caches of the T tokens."""
        streams, _ = self._run_layers(batch, ())
        return self._collapse(streams)

    @torch.inference_mode()
    def forward_with_features(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """What `forward` gives, and what a drafter reads.

        Returns:
            hidden states [T, C], and for DSpark [T, k, D], the mean of the streams behind each of
            its k layers; else the streams [T, n, D] behind the last layer.
        """
        dspark = self.config.dspark
        streams, taps = self._run_layers(batch, () if dspark is None else dspark.target_layers)
        features = streams if dspark is None else torch.stack(taps, dim=1)
        return self._collapse(streams), features

    def _run_layers(
        self, batch: ForwardBatch, tapped: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """The streams [T, n, D] behind the last layer, and the means behind the tapped ones."""
        attention, positions = batch.attention, batch.positions
        plain, scaled = self.rotations(batch)
        x = self.embed(batch.input_ids)
        streams = x.unsqueeze(1).repeat(1, self.config.hyper.num_streams, 1)
        taps = []
        for index, layer in enumerate(self.layers):
            cos_sin = scaled if layer.compresses else plain
            streams = layer(streams, batch.input_ids, positions, cos_sin, attention)
            if index in tapped:
                taps.append(stream_mean(streams))
        return streams, taps

    def _collapse(self, streams: Tensor) -> Tensor:
        hidden_states: Tensor = self.norm(self.hc_head(streams))
        return hidden_states
