"""Attention of DeepSeek-V4.1: a window of its own, and rows that a layer before may have written.

DeepSeek-V4.1, section 2.2. Sources of rows compress tokens, sources of choices pick rows; all other
layers take the rows and the choice of the last source before them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_core.models.deepseek_v41_config import SharedCaches, V41Config
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.shared_indexer import SharedIndexer
from deepinfer_core.models.layers.source_compressor import SourceCompressor
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

CHOSEN_ROWS = "chosen_rows"
"""Of the last layer that has picked some."""


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
        self.rows = RowCache(
            ops,
            source.rows,
            config.head_dim,
            dtype=dtype,
            role="rows.store",
            record=config.row_record,
        )
        if config.kv_source(layer) == layer:
            self.compressor = SourceCompressor(ops, config, ratio, source.raw, dtype=dtype)
        if layer in config.index_sources:
            self.indexer = SharedIndexer(ops, config, layer, source.keys, dtype=dtype)

    def write(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """As of `WindowAttention`; a source caches the rows and keys that the tokens complete."""
        if self.rows is not None and self.compressor is not None and self.indexer is not None:
            meta, _ = self.rows.of(attention)
            latents, closed = self.compressor(x, meta, attention)
            rows = self.rope(latents.unsqueeze(1), closed.positions, cos_sin)
            self.rows.store_at(rows, closed.slots, attention)
            self.indexer.store_keys(latents, closed, cos_sin, attention)
        return super().write(x, positions, cos_sin, attention)

    def _further_rows(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> dict[str, Any]:
        if self.rows is None:
            return {}
        if self.indexer is not None:
            chosen = self.indexer(x, q_latent, positions, cos_sin, attention)
            attention.handed_on[CHOSEN_ROWS] = chosen
        _, cache = self.rows.of(attention)
        records = self.rows.options("extra_record")
        return {"extra_cache": cache, "extra_rows": attention.handed_on[CHOSEN_ROWS], **records}
