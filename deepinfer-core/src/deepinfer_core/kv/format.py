"""Caches of rows: which record formats they hold, as the configuration names them, and their bytes.

A row is key and value of all heads, or a key alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import GroupKind, LayerKV
from deepinfer_core.ops.records import Record, make_record

PLAIN = "auto"
"""Rows in the model's dtype."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class KVFormat:
    """What `cache.kv_format` says: a record format for rows and one for indexers' keys."""

    rows: str | None = None
    """None: in the model's dtype."""
    keys: str | None = None

    @classmethod
    def parse(cls, text: str, supported: tuple[str, ...]) -> KVFormat:
        """Read `auto`, or two names of formats joined by a plus.

        Args:
            supported: what the model can hold besides `auto`.

        Raises:
            ConfigError: the model cannot hold such records.
        """
        if text not in (PLAIN, *supported):
            raise ConfigError(
                "the model's caches cannot hold such records",
                field="cache.kv_format",
                value=text,
                allowed=", ".join((PLAIN, *supported)),
            )
        names = [None if name == PLAIN else name for name in text.split("+")]
        return cls(names[0], names[-1])

    def row_record(self, width: int, rope_dim: int) -> Record | None:
        """Of rows of keys and values whose last `rope_dim` dims rotate; None: plain rows."""
        return None if self.rows is None else make_record(self.rows, width, rope_dim)

    def key_record(self, width: int, *, is_turned: bool) -> Record | None:
        """Of an indexer's keys; None: plain rows."""
        if self.keys is None:
            return None
        return make_record(self.keys, width, is_turned=is_turned)


PLAIN_FORMAT = KVFormat()


def row_kv(
    width: int,
    dtype: str,
    purpose: str,
    *,
    window_size: int | None = None,
    tokens_per_row: int = 1,
    record: Record | None = None,
) -> LayerKV:
    """What a cache of rows stores.

    Args:
        width: numbers in a row.
        dtype: of plain rows.
        purpose: in words.
        record: what the rows are, if not plain.
    """
    kind: GroupKind = "full" if window_size is None else "window"
    return LayerKV(
        kind=kind,
        num_kv_heads=1,
        head_dim=width if record is None else record.num_bytes,
        dtype_bytes=DTYPE_BYTES[dtype] if record is None else 1,
        window_size=window_size,
        num_planes=1,
        tokens_per_row=tokens_per_row,
        dtype=dtype if record is None else "uint8",
        record=record,
        purpose=purpose,
    )
