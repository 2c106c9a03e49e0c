"""What one request's caches hold at some length: what grows with it, and what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer_core.kv.layout import LayerKV


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Caches of one kind."""

    purpose: str
    """In words."""
    held_as: str
    """A dtype or the name of a record format."""
    num_caches: int
    row_bytes: int
    tokens_per_row: int
    window_size: int | None

    @property
    def bytes_per_token(self) -> float:
        """By which these caches grow with the context; windows do not."""
        if self.window_size is not None:
            return 0.0
        return self.num_caches * self.row_bytes / self.tokens_per_row

    @property
    def fixed_bytes(self) -> int:
        """Of full windows."""
        return self.num_caches * self.row_bytes * (self.window_size or 0)

    def bytes_at(self, num_tokens: int) -> int:
        """After so many tokens; a row is there when its last token is."""
        num_tokens = min(num_tokens, self.window_size or num_tokens)
        return self.num_caches * self.row_bytes * (num_tokens // self.tokens_per_row)


def cache_uses(layer_kvs: Iterable[LayerKV], dtype: str) -> list[CacheUse]:
    """The kinds of caches of a model, in its order.

    Args:
        dtype: of the model.
    """
    counts = Counter(
        (
            kv.purpose,
            kv.record.name if kv.record else kv.dtype or dtype,
            kv.row_bytes,
            kv.tokens_per_row,
            kv.window_size,
        )
        for kv in layer_kvs
    )
    return [
        CacheUse(purpose, held_as, count, row_bytes, tokens_per_row, window_size)
        for (purpose, held_as, row_bytes, tokens_per_row, window_size), count in counts.items()
    ]
