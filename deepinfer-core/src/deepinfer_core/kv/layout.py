"""Layout groups: which layers share a block table, and what a page holds.

The only place that computes cache bytes. All groups share one pool of equal pages; a page of a
group holds `block_size` consecutive positions of every layer of that group.
No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["full", "window"]


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one attention layer stores per token."""

    kind: GroupKind
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int
    window_size: int | None = None
    """Tokens visible including the current one; only for kind `window`."""

    @property
    def bytes_per_token(self) -> int:
        """Key and value."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Layers that live and die by the same positions."""

    kind: GroupKind
    layers: tuple[int, ...]
    """Model layer indices, ascending; their order inside the page."""
    layer_kv: LayerKV
    block_size: int
    """Positions per page of this group."""

    @property
    def window_size(self) -> int | None:
        return self.layer_kv.window_size

    @property
    def bytes_per_token(self) -> int:
        return self.layer_kv.bytes_per_token * len(self.layers)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """All groups over one pool of pages of `page_bytes` each."""

    groups: tuple[LayoutGroup, ...]
    page_bytes: int
    hit_granularity: int
    """A prefix hit is a multiple of this many tokens (least common multiple of block sizes)."""

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """Layer index -> group index."""
        owner = {layer: g for g, group in enumerate(self.groups) for layer in group.layers}
        return tuple(owner[layer] for layer in range(len(owner)))


def make_layout(layers: Sequence[LayerKV], *, block_size: int) -> KVLayout:
    """Group layers of equal `LayerKV` and choose positions per page.

    Args:
        layers: one per model layer, in order.
        block_size: positions per page of the group with the most bytes per token.
    """
    raise NotImplementedError
