"""The indexer of DeepSeek-V4: picks compressed rows by keys that a compressor of its own makes."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.models.deepseek_v4_config import CompressorCaches, V4Config
from deepinfer_core.models.layers.compressor import Compressor
from deepinfer_core.models.layers.key_indexer import KeyIndexer
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class RowIndexer(KeyIndexer):
    """Makes a key of each group of tokens, and picks rows (DeepSeek-V4, section 2.3.1)."""

    def __init__(
        self, ops: OpTable, config: V4Config, ratio: int, caches: CompressorCaches, *, dtype: str
    ) -> None:
        width, record = config.indexer.head_dim, config.key_record
        compressor = Compressor(ops, config, width, ratio, caches, dtype=dtype, record=record)
        super().__init__(ops, config, compressor.rows, ratio, dtype=dtype)
        self.compressor = compressor

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
        slots: Tensor = self.pick(x, q_latent, positions, cos_sin, attention)
        return slots
