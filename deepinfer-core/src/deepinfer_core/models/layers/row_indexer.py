"""The indexer of DeepSeek-V4: picks compressed rows by keys that a compressor of its own makes."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import CompressorCaches, V4Config
from deepinfer_core.models.layers.compressor import Compressor
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class RowIndexer(nn.Module):
    """Picks `top_k` compressed rows for each query (DeepSeek-V4, section 2.3.1)."""

    def __init__(
        self, ops: OpTable, config: V4Config, ratio: int, caches: CompressorCaches, *, dtype: str
    ) -> None:
        super().__init__()
        indexer, size = config.indexer, config.hidden_size
        self.indexer, self.ratio = indexer, ratio
        self.compressor = Compressor(
            ops,
            config,
            indexer.head_dim,
            ratio,
            caches,
            dtype=dtype,
            record=config.key_record,
        )
        width = indexer.num_heads * indexer.head_dim
        self.wq_b = Linear(ops, config.q_rank, width, dtype=dtype, role="index.q")
        self.weights_proj = Linear(
            ops, size, indexer.num_heads, dtype="float32", role="index.weights"
        )
        self.weight_scale = indexer.num_heads**-0.5 * indexer.head_dim**-0.5
        self.rope = TailRope(
            ops, indexer.head_dim, config.rope_head_dim, dtype=dtype, role="index.rope"
        )
        self.select = ops.bind(
            "index.select",
            dtype=dtype,
            role="index.select",
            features=self.compressor.rows.features,
            scheme=self.compressor.rows.scheme,
            num_q_heads=indexer.num_heads,
            head_dim=indexer.head_dim,
            top_k=indexer.top_k,
        )

    def forward(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """[T, C] and the normalised latent of the queries -> slots [T, top_k] int32."""
        self.compressor(x, cos_sin, attention)
        held = self.compressor.rows
        meta, keys = held.of(attention)
        q = self.wq_b(q_latent).view(len(x), self.indexer.num_heads, -1)
        q = held.round(self.rope(q, positions, cos_sin))
        weights = self.weights_proj(x.float()) * self.weight_scale
        slots: Tensor = self.select(
            q, weights, keys, meta, self.indexer.top_k, self.ratio, **held.options()
        )
        return slots
