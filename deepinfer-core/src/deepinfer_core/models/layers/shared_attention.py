"""Attention of DeepSeek-V4.1: a window of its own, and rows that a layer before may have written.

DeepSeek-V4.1, section 2.2. Sources of rows compress tokens, sources of choices pick rows; all other
layers take the rows and the choice of the last source before them.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.models.deepseek_v41_config import SharedCaches, V41Config
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.shared_indexer import SharedIndexer
from deepinfer_core.models.layers.source_compressor import SourceCompressor
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class SharedAttention(WindowAttention):
    """Attends to its window and to chosen rows of its source."""

    def __init__(
        self, ops: OpTable, config: V41Config, layer: int, caches: SharedCaches, *, dtype: str
    ) -> None:
        super().__init__(ops, config, caches.window, dtype=dtype)
        self.rows = self.compressor = self.indexer = None
        source = caches.source
        if source is None:
            return
        ratio = config.compress_ratios[layer]
        self.rows = RowCache(ops, source.rows, config.head_dim, dtype=dtype, role="rows.store")
        self.index_source = config.index_source(layer)
        if config.kv_source(layer) == layer:
            self.compressor = SourceCompressor(ops, config, ratio, source.raw, dtype=dtype)
        if layer in config.index_sources:
            self.indexer = SharedIndexer(ops, config, layer, source.keys, dtype=dtype)

    def _further_rows(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> dict[str, Tensor]:
        if self.rows is None:
            return {}
        meta, cache = self.rows.of(attention)
        if self.compressor is not None:
            latents, closed = self.compressor(x, meta, attention)
            if len(latents):
                rows = self.rope(latents.unsqueeze(1), closed.positions, cos_sin)
                self.rows.store_at(rows, closed.slots, attention)
                assert self.indexer is not None  # the configuration was checked
                self.indexer.store_keys(latents, closed, cos_sin, attention)
        if self.indexer is not None:
            chosen = self.indexer(x, q_latent, positions, cos_sin, attention)
            meta.plans[f"chosen_rows/{self.index_source}"] = chosen
        # What a layer before has chosen in this step.
        return {"extra_cache": cache, "extra_rows": meta.plans[f"chosen_rows/{self.index_source}"]}
