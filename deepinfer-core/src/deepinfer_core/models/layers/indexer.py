"""The lightning indexer: a light attention that picks the tokens which the real one sees.

DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1. Keys have a cache of their own; scores never leave
the op. Queries and keys are turned by a Hadamard matrix where keys are records; where they are
plain it would change no score.
"""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.decoder_config import DecoderConfig, IndexerConfig, LatentConfig
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import LayerNorm
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

KEY_NORM_EPS = 1e-6
"""Of the released code."""


class Indexer(nn.Module):
    """Stores one key per token and picks `top_k` tokens for each query.

    Args:
        cache: index of the keys' cache.
    """

    def __init__(
        self,
        ops: OpTable,
        config: DecoderConfig,
        latent: LatentConfig,
        indexer: IndexerConfig,
        cache: int,
        *,
        dtype: str,
    ) -> None:
        super().__init__()
        if latent.q_rank is None:
            raise ValueError("an indexer reads the latent of the queries")
        size, num_heads, head_dim = config.hidden_size, indexer.num_heads, indexer.head_dim
        self.indexer = indexer
        self.keys = RowCache(
            ops, cache, head_dim, dtype=dtype, role="index.store", record=config.key_record
        )
        self.wq_b = Linear(ops, latent.q_rank, num_heads * head_dim, dtype=dtype, role="index.q")
        self.wk = Linear(ops, size, head_dim, dtype=dtype, role="index.k")
        self.k_norm = LayerNorm(ops, head_dim, KEY_NORM_EPS, dtype=dtype, role="index.k_norm")
        self.weights_proj = Linear(ops, size, num_heads, dtype="float32", role="index.weights")
        self.weight_scale = num_heads**-0.5 * head_dim**-0.5
        self.rotate = ops.bind(
            "rope.apply",
            dtype=dtype,
            role="index.rope",
            head_dim=head_dim,
            rotary_dim=latent.rope_head_dim,
        )
        self.select = ops.bind(
            "index.select",
            dtype=dtype,
            role="index.select",
            features=self.keys.features,
            scheme=self.keys.scheme,
            num_q_heads=num_heads,
            head_dim=head_dim,
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
        """[T, C] and the normalised latent of the queries [T, q_rank] -> slots [T, top_k] int32.

        Slots are those of the layer's own cache, which has the same block table.
        """
        indexer = self.indexer
        q = self.wq_b(q_latent).view(-1, indexer.num_heads, indexer.head_dim)
        k = self.k_norm(self.wk(x)).unsqueeze(1)
        # Halves rotate here, whatever the layout of the attention beside it.
        q, k = self.rotate(q, k, positions, cos_sin, layout="half")
        self.keys.store(k, attention)
        meta, keys = self.keys.of(attention)
        weights = self.weights_proj(x.float()) * self.weight_scale
        slots: Tensor = self.select(
            self.keys.round(q), weights, keys, meta, indexer.top_k, **self.keys.options()
        )
        return slots
