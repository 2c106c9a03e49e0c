"""What the indexers of V4 and V4.1 share: queries of their own against keys of rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class KeyIndexer(nn.Module):
    """Picks `top_k` rows for each query (DeepSeek-V4, section 2.3.1).

    Args:
        keys: cache of the rows' keys.
        ratio: tokens per row.
        features: of `index.select`, beyond those of the cache.
    """

    def __init__(
        self,
        ops: OpTable,
        config: V4Config,
        keys: RowCache,
        ratio: int,
        *,
        dtype: str,
        features: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.indexer = indexer = config.indexer
        self.keys, self.ratio = keys, ratio
        width = indexer.num_heads * indexer.head_dim
        self.wq_b = Linear(ops, config.q_rank, width, dtype=dtype, role="index.q")
        self.weights_proj = Linear(
            ops, config.hidden_size, indexer.num_heads, dtype="float32", role="index.weights"
        )
        self.weight_scale = indexer.num_heads**-0.5 * indexer.head_dim**-0.5
        self.rope = TailRope(
            ops, indexer.head_dim, config.rope_head_dim, dtype=dtype, role="index.rope"
        )
        self.select = ops.bind(
            "index.select",
            dtype=dtype,
            role="index.select",
            features=(*keys.features, *features),
            scheme=keys.scheme,
            num_q_heads=indexer.num_heads,
            head_dim=indexer.head_dim,
            top_k=indexer.top_k,
        )

    def pick(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
        **options: Any,
    ) -> Any:
        """What `index.select` gives for the tokens [T, C]: slots [T, top_k] int32, and what the
        options ask for.

        Args:
            q_latent: [T, q_rank], the normalised latent of the queries.
        """
        meta, keys = self.keys.of(attention)
        q = self.wq_b(q_latent).view(len(x), self.indexer.num_heads, -1)
        q = self.keys.round(self.rope(q, positions, cos_sin))
        weights = self.weights_proj(x.float()) * self.weight_scale
        options = {**self.keys.options(), **options}
        return self.select(q, weights, keys, meta, self.indexer.top_k, self.ratio, **options)
