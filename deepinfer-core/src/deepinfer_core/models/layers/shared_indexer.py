"""The indexer of DeepSeek-V4.1: keys made of a source's latents, blocks kept for later layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v41_config import V41Config
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.rows import ClosedGroups
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

CANDIDATE_BLOCKS = "candidate_blocks"


class SharedIndexer(nn.Module):
    """Picks `top_k` rows for each query (DeepSeek-V4.1, section 2.2).

    Args:
        layer: whose it is.
        keys: index of the cache of its source's keys.
    """

    def __init__(
        self, ops: OpTable, config: V41Config, layer: int, keys: int, *, dtype: str
    ) -> None:
        super().__init__()
        self.indexer = indexer = config.indexer
        self.ratio = config.compress_ratios[layer]
        self.candidates = config.candidates
        self.role = _role(config, layer)
        width = indexer.num_heads * indexer.head_dim
        self.wq_b = Linear(ops, config.q_rank, width, dtype=dtype, role="index.q")
        self.weights_proj = Linear(
            ops, config.hidden_size, indexer.num_heads, dtype="float32", role="index.weights"
        )
        self.weight_scale = indexer.num_heads**-0.5 * indexer.head_dim**-0.5
        self.rope = TailRope(
            ops, indexer.head_dim, config.rope_head_dim, dtype=dtype, role="index.rope"
        )
        self.keys = RowCache(
            ops,
            keys,
            indexer.head_dim,
            dtype=dtype,
            role="index.store",
            record=config.key_record,
        )
        self.wk = self.k_norm = None
        if config.kv_source(layer) == layer:
            self.wk = Linear(ops, config.head_dim, indexer.head_dim, dtype=dtype, role="index.k")
            self.k_norm = RMSNorm(
                ops, indexer.head_dim, config.norm_eps, dtype=dtype, role="index.k_norm"
            )
        features = self.keys.features if self.role is None else (*self.keys.features, "candidates")
        self.select = ops.bind(
            "index.select",
            dtype=dtype,
            role="index.select",
            features=features,
            scheme=self.keys.scheme,
            num_q_heads=indexer.num_heads,
            head_dim=indexer.head_dim,
            top_k=indexer.top_k,
        )

    def store_keys(
        self, latents: Tensor, closed: ClosedGroups, cos_sin: Tensor, attention: AttentionBatch
    ) -> None:
        """Keys of the rows that a source completes: of their latents [E, head_dim] before rope."""
        assert self.wk is not None and self.k_norm is not None  # of a source
        keys = self.k_norm(self.wk(latents)).unsqueeze(1)
        self.keys.store_at(self.rope(keys, closed.positions, cos_sin), closed.slots, attention)

    def forward(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """[T, C] and the normalised latent of the queries -> slots [T, top_k] int32."""
        meta, keys = self.keys.of(attention)
        q = self.wq_b(q_latent).view(len(x), self.indexer.num_heads, -1)
        q = self.keys.round(self.rope(q, positions, cos_sin))
        weights = self.weights_proj(x.float()) * self.weight_scale
        top_k, ratio, candidates = self.indexer.top_k, self.ratio, self.candidates
        options: dict[str, Any] = self.keys.options()
        if candidates is None or self.role is None:
            chosen: Tensor = self.select(q, weights, keys, meta, top_k, ratio, **options)
            return chosen
        options["rows_per_block"] = candidates.rows_per_block
        if self.role == "keeps":
            options["num_blocks"] = candidates.num_blocks
            chosen, attention.handed_on[CANDIDATE_BLOCKS] = self.select(
                q, weights, keys, meta, top_k, ratio, **options
            )
            return chosen
        blocks = attention.handed_on[CANDIDATE_BLOCKS]
        chosen = self.select(q, weights, keys, meta, top_k, ratio, blocks=blocks, **options)
        return chosen


def _role(config: V41Config, layer: int) -> str | None:
    """What a layer has to do with candidate blocks: it `keeps` some, `obeys`, or nothing."""
    if config.candidates is None or layer < config.candidates.source_layer:
        return None
    return "keeps" if layer == config.candidates.source_layer else "obeys"
