"""A cache of rows: one row per token or per group of tokens, which serves all heads alike."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class RowCache:
    """Binds the store of one cache, and finds the cache in a step's batch.

    Args:
        index: of the cache, as the model's `layer_kv` has it.
        width: of a row.
        dtype: of the rows that are given.
        role: of the store.
    """

    def __init__(self, ops: OpTable, index: int, width: int, *, dtype: str, role: str) -> None:
        self.index, self.width = index, width
        self._store = ops.bind(
            "kv.store",
            dtype=dtype,
            role=role,
            features=("strided_cache", "latent"),
            head_dim=width,
            num_kv_heads=1,
        )

    def of(self, attention: AttentionBatch) -> tuple[AttentionMeta, Tensor]:
        """The meta of its layout group, and the cache [P, s, width]."""
        meta, cache = attention.of_cache(self.index)
        return meta, cache.k_cache.squeeze(2)

    def store(self, rows: Tensor, attention: AttentionBatch) -> None:
        """Write the rows of this step's tokens: [T, width] or [T, 1, width]."""
        meta, _ = attention.of_cache(self.index)
        self._write(rows, meta.slot_mapping, attention, meta.plan_for(self._store))

    def store_at(self, rows: Tensor, slots: Tensor, attention: AttentionBatch) -> None:
        """Write rows [E, width] or [E, 1, width] to slots [E] int32; -1 = do not write."""
        self._write(rows, slots, attention, None)

    def _write(
        self, rows: Tensor, slots: Tensor, attention: AttentionBatch, plan: object | None
    ) -> None:
        _, cache = attention.of_cache(self.index)
        rows = rows.view(len(rows), 1, self.width)
        self._store(rows, None, cache.k_cache, None, slots, plan=plan)
