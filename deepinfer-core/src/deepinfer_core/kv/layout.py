"""Layout groups: which layers share a block table, and what a page holds.

The only place that computes cache bytes. All groups share one pool of equal pages; a page of a
group holds `block_size` consecutive positions of every layer of that group.
No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

from deepinfer_core.errors import ConfigError

MAX_PADDING = 0.1
"""Share of a page that a group may leave unused to keep the hit granularity small."""

GroupKind = Literal["full", "window", "latent"]


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
    def num_planes(self) -> int:
        """Rows per token: a key and a value, or a latent that serves as both."""
        return 1 if self.kind == "latent" else 2

    @property
    def bytes_per_token(self) -> int:
        return self.num_planes * self.num_kv_heads * self.head_dim * self.dtype_bytes


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

    def page_offset_bytes(self, layer: int) -> tuple[int, int]:
        """Where a model layer's keys and values begin inside a page of this group.

        LAYOUT: a page is [layer][k | v][block_size][num_kv_heads][head_dim], then padding.

        Returns:
            Byte offsets (keys, values).
        """
        plane_bytes = self.block_size * self.layer_kv.bytes_per_token // 2
        k_offset = 2 * self.layers.index(layer) * plane_bytes
        return k_offset, k_offset + plane_bytes


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

    The group with the most bytes per token fills its page exactly. Every other group takes the
    number of positions that keeps the hit granularity smallest among those that waste less than
    a tenth of the page; if none does, the one that wastes least.

    Args:
        layers: one per model layer, in order.
        block_size: positions per page of the group with the most bytes per token.

    Raises:
        ConfigError: there are no layers, or a window layer lacks its window size.
    """
    if not layers:
        raise ConfigError("a KV layout needs at least one layer")
    members: dict[LayerKV, list[int]] = {}
    for index, layer in enumerate(layers):
        if (layer.kind == "window") != (layer.window_size is not None and layer.window_size >= 1):
            raise ConfigError(
                "a window layer needs a window size of at least 1, and only a window layer has one",
                field=f"layers.{index}",
                value=layer,
            )
        members.setdefault(layer, []).append(index)

    widths = {layer: layer.bytes_per_token * len(owned) for layer, owned in members.items()}
    alignment = lcm(*(layer.dtype_bytes for layer in members))
    page_bytes = -(-block_size * max(widths.values()) // alignment) * alignment
    granularity = block_size
    block_sizes: dict[LayerKV, int] = {}
    for layer in sorted(members, key=lambda layer: -widths[layer]):
        block_sizes[layer] = _positions_per_page(page_bytes, widths[layer], granularity)
        granularity = lcm(granularity, block_sizes[layer])
    groups = tuple(
        LayoutGroup(layer.kind, tuple(owned), layer, block_sizes[layer])
        for layer, owned in members.items()
    )
    return KVLayout(groups, page_bytes, granularity)


def _positions_per_page(page_bytes: int, bytes_per_token: int, granularity: int) -> int:
    most = page_bytes // bytes_per_token
    fits = [
        count
        for count in range(most, 0, -1)
        if page_bytes - count * bytes_per_token < MAX_PADDING * page_bytes
    ]
    return min(fits, key=lambda count: lcm(granularity, count), default=most)
