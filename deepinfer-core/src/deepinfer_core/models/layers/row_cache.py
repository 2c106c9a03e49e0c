"""A cache of rows: one row per token or per group of tokens, which serves all heads alike."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class RowCache:
    """Binds the store of one cache, and finds the cache in a step's batch.

    Args:
        index: of the cache, as the model's `layer_kv` has it.
        width: of a row.
        dtype: of the rows that are given.
        role: of the store.
        record: what the cache holds, if not plain rows.
    """

    def __init__(
        self,
        ops: OpTable,
        index: int,
        width: int,
        *,
        dtype: str,
        role: str,
        record: Record | None = None,
    ) -> None:
        self.index, self.width, self.record = index, width, record
        self.features = ("strided_cache",) if record is None else ("strided_cache", "records")
        """For binding ops that read this cache."""
        self.scheme = None if record is None else record.name
        """For the same."""
        self._store = ops.bind(
            "kv.store",
            dtype=dtype if record is None else "uint8",
            role=role,
            features=("strided_cache", "latent"),
            head_dim=width if record is None else record.num_bytes,
            num_kv_heads=1,
        )
        if record is not None:
            self._encode, self._decode = (
                ops.bind(op, dtype=dtype, role=role, scheme=record.name, width=width)
                for op in ("quant.encode", "quant.decode")
            )

    def of(self, attention: AttentionBatch) -> tuple[AttentionMeta, Tensor]:
        """The meta of its layout group, and the cache [P, s, width or bytes]."""
        meta, cache = attention.of_cache(self.index)
        return meta, cache.k_cache.squeeze(2)

    def options(self, name: str = "record") -> dict[str, Record]:
        """The argument that tells a reading op of the records; empty where rows are plain."""
        return {} if self.record is None else {name: self.record}

    def store(self, rows: Tensor, attention: AttentionBatch) -> None:
        """Write the rows of this step's tokens: [T, width] or [T, 1, width]."""
        meta, _ = attention.of_cache(self.index)
        self._write(rows, meta.slot_mapping, attention, meta.plan_for(self._store))

    def store_at(self, rows: Tensor, slots: Tensor, attention: AttentionBatch) -> None:
        """Write rows [E, width] or [E, 1, width] to slots [E] int32; -1 = do not write."""
        self._write(rows, slots, attention, None)

    def pack(self, rows: Tensor) -> Tensor:
        """[T, width] or [T, 1, width] as they lie in the cache: [T, width or bytes]."""
        rows = rows.view(len(rows), self.width)
        return rows if self.record is None else self._encode(rows, self.record)

    def round(self, x: Tensor) -> Tensor:
        """[..., width] as the cache would give them back, turned if it turns them; same dtype."""
        if self.record is None:
            return x
        rows = self._decode(self._encode(x.reshape(-1, self.width), self.record), self.record)
        rounded: Tensor = rows.to(x.dtype).view(x.shape)
        return rounded

    def _write(
        self, rows: Tensor, slots: Tensor, attention: AttentionBatch, plan: object | None
    ) -> None:
        _, cache = attention.of_cache(self.index)
        self._store(self.pack(rows).unsqueeze(1), None, cache.k_cache, None, slots, plan=plan)
