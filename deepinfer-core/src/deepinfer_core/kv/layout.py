"""Layout groups: which caches share a block table, and what a page holds.

The only place that computes cache bytes. A layer has one cache or several. All groups share one
pool of equal pages; a page of a group holds `block_size` consecutive positions of every cache of
that group. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import lcm
from typing import Literal, NamedTuple

from deepinfer_core.errors import ConfigError
from deepinfer_core.ops.records import Record

MAX_PADDING = 0.1
"""Share of a page that a group may leave unused to keep the hit granularity small."""

GroupKind = Literal["full", "window"]


class Lifetime(NamedTuple):
    """What caches must have in common to share a block table."""

    window_size: int | None
    needed_by_hits: bool


FULL = Lifetime(None, True)
BlockSizes = dict[Lifetime, int]
"""-> positions per page."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one cache of a layer stores per token. A layer may have several."""

    kind: GroupKind
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int
    window_size: int | None = None
    """Tokens visible including the current one; only for kind `window`."""
    num_planes: int = 2
    """Keys and values; 1 where one row serves as both, or there are only keys."""
    tokens_per_row: int = 1
    """How many tokens were compressed into one row."""
    dtype: str | None = None
    """Of what is stored; None: the model's."""
    needed_by_hits: bool = True
    """False: nothing after a prefix hit reads rows of before it, since a multiple of the hit
    granularity leaves none open. Only for kind `window`."""
    allows_replay: bool = False
    """After a prefix hit the model may rebuild this window from the tokens right before it, each of
    which then sees a window cut short. Only for kind `window`, and where the model takes a
    window's rows from `ops.rows`, which knows where it was cut."""
    record: Record | None = None
    """What a row is, if not `head_dim` numbers: then it is that many bytes."""
    purpose: str = field(default="keys and values", compare=False)
    """In words, for people."""

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(self.window_size, self.needed_by_hits)

    @property
    def row_bytes(self) -> int:
        """All planes of a row."""
        return self.num_planes * self.num_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_token(self) -> float:
        return self.row_bytes / self.tokens_per_row


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Caches that live and die by the same positions, and share a block table."""

    kind: GroupKind
    caches: tuple[int, ...]
    """Indices of the model's caches, ascending; their order inside the page."""
    layer_kvs: tuple[LayerKV, ...]
    """Of these caches."""
    block_size: int
    """Positions per page of this group."""

    @property
    def window_size(self) -> int | None:
        return self.layer_kvs[0].window_size

    @property
    def needed_by_hits(self) -> bool:
        """Whether a prefix hit takes blocks of this group."""
        return self.layer_kvs[0].needed_by_hits

    @property
    def bytes_per_token(self) -> float:
        return sum(layer_kv.bytes_per_token for layer_kv in self.layer_kvs)

    @property
    def plane_offsets(self) -> tuple[int, ...]:
        """Byte in a page where each cache's first plane begins.

        LAYOUT: a page is [cache][plane][rows][num_kv_heads][head_dim], then padding; a cache has
        block_size / tokens_per_row rows, those of large numbers first.
        """
        sizes = [
            self.block_size // layer_kv.tokens_per_row * layer_kv.row_bytes
            for layer_kv in self.layer_kvs
        ]
        return tuple(accumulate(sizes[:-1], initial=0))


@dataclass(frozen=True, slots=True)
class KVLayout:
    """All groups over one pool of pages of `page_bytes` each."""

    groups: tuple[LayoutGroup, ...]
    page_bytes: int
    hit_granularity: int
    """A prefix hit is a multiple of this many tokens (least common multiple of the block sizes of
    groups that hits need)."""
    num_replay_tokens: int = 0
    """Bounded replay: so many tokens before the end of a hit are computed again, since no window is
    kept. 0: hits are exact."""

    def first_to_compute(self, num_hit_tokens: int) -> int:
        """Where computing begins behind a hit: at its end, or before it to rebuild windows."""
        return max(0, num_hit_tokens - self.num_replay_tokens)

    @property
    def cache_groups(self) -> tuple[int, ...]:
        """Cache index -> group index."""
        owner = {cache: g for g, group in enumerate(self.groups) for cache in group.caches}
        return tuple(owner[cache] for cache in range(len(owner)))


def make_layout(
    layer_kvs: Sequence[LayerKV],
    *,
    block_size: int,
    bounded_replay: bool = False,
    max_rollback: int = 0,
) -> KVLayout:
    """Group caches that keep the same positions, and choose positions per page.

    Args:
        layer_kvs: of a model's caches, in its order.
        block_size: positions per page of the group with the most bytes per token; where caches
            hold rows of several tokens, of the group without a window, and rounded up.
        bounded_replay: keep no window for prefix hits, and rebuild them by replay.
        max_rollback: most tokens that drafts may take back; a replay covers them too.

    Raises:
        ConfigError: there are no caches, a window cache lacks its window size, one that is no
            window says that hits do not need it, or the model allows no replay.
    """
    if not layer_kvs:
        raise ConfigError("a KV layout needs at least one layer")
    num_replay_tokens = 0
    if bounded_replay:
        num_replay_tokens = _longest_replayed_window(layer_kvs) - 1 + max_rollback
        layer_kvs = [
            kv if kv.window_size is None else replace(kv, needed_by_hits=False) for kv in layer_kvs
        ]
    members: dict[Lifetime, list[int]] = {}
    for cache, layer_kv in enumerate(layer_kvs):
        _check(layer_kv, f"layers.{cache}")
        members.setdefault(layer_kv.lifetime, []).append(cache)
    for owned in members.values():
        # Rows of large numbers first, so that each plane begins at a multiple of its own size.
        owned.sort(key=lambda cache: (-layer_kvs[cache].dtype_bytes, cache))
    units = {
        lifetime: _unit([layer_kvs[cache] for cache in owned])
        for lifetime, owned in members.items()
    }
    if any(layer_kv.tokens_per_row > 1 for layer_kv in layer_kvs):
        page_bytes, block_sizes = _fit_to_rows(units, block_size)
    else:
        page_bytes, block_sizes = _fit_closely(units, block_size)
    alignment = lcm(*(layer_kv.dtype_bytes for layer_kv in layer_kvs))
    page_bytes = -(-page_bytes // alignment) * alignment
    groups = tuple(
        LayoutGroup(
            "full" if lifetime == FULL else "window",
            tuple(owned),
            tuple(layer_kvs[cache] for cache in owned),
            block_sizes[lifetime],
        )
        for lifetime, owned in members.items()
    )
    granularity = lcm(*(group.block_size for group in groups if group.needed_by_hits))
    return KVLayout(groups, page_bytes, granularity, num_replay_tokens)


def _check(layer_kv: LayerKV, field: str) -> None:
    """Whether the kind of a cache agrees with its window."""
    window_size = layer_kv.window_size
    if (layer_kv.kind == "window") != (window_size is not None and window_size >= 1):
        raise ConfigError(
            "a window layer needs a window size of at least 1, and only a window layer has one",
            field=field,
            value=layer_kv,
        )
    if layer_kv.kind != "window" and not layer_kv.needed_by_hits:
        raise ConfigError(
            "only hits without the rows of a window can go on",
            field=f"{field}.needed_by_hits",
            value=layer_kv,
        )


def _longest_replayed_window(layer_kvs: Sequence[LayerKV]) -> int:
    windows = [layer_kv for layer_kv in layer_kvs if layer_kv.window_size is not None]
    if (
        not windows
        or len(windows) == len(layer_kvs)
        or not all(layer_kv.allows_replay for layer_kv in windows)
    ):
        raise ConfigError(
            "this model cannot rebuild its windows from a bounded replay",
            field="cache.bounded_replay",
            value=True,
            allowed="False; True only for models that allow it (DeepSeek-V4.1)",
        )
    return max(layer_kv.window_size or 0 for layer_kv in windows)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The fewest tokens that fill whole rows of every cache of a group, and their bytes."""

    num_tokens: int
    num_bytes: int


def _unit(layer_kvs: Sequence[LayerKV]) -> _Unit:
    num_tokens = lcm(*(layer_kv.tokens_per_row for layer_kv in layer_kvs))
    rows = (num_tokens // kv.tokens_per_row * kv.row_bytes for kv in layer_kvs)
    return _Unit(num_tokens, sum(rows))


def _fit_closely(units: Mapping[Lifetime, _Unit], block_size: int) -> tuple[int, BlockSizes]:
    """The widest group fills its page exactly.

    Every other group takes the number of positions that keeps the hit granularity smallest among
    those that waste less than a tenth of the page; if none does, the one that wastes least.
    """
    page_bytes = block_size * max(unit.num_bytes for unit in units.values())
    granularity = block_size
    block_sizes = {}
    for lifetime in sorted(units, key=lambda lifetime: -units[lifetime].num_bytes):
        most = page_bytes // (width := units[lifetime].num_bytes)
        fits = [n for n in range(most, 0, -1) if page_bytes - n * width < MAX_PADDING * page_bytes]
        size = min(fits, key=lambda n: lcm(granularity, n), default=most)
        block_sizes[lifetime] = size
        granularity = lcm(granularity, size)
    return page_bytes, block_sizes


def _fit_to_rows(units: Mapping[Lifetime, _Unit], block_size: int) -> tuple[int, BlockSizes]:
    """The group without a window fills its page, and sets the hit granularity alone.

    It is what grows with the context. A window group takes the largest divisor of its positions
    that fits, and leaves the rest of a page unused.
    """
    whole = units.get(FULL)
    windows = {lifetime: unit for lifetime, unit in units.items() if lifetime != FULL}
    if whole is None or any(unit.num_tokens > 1 for unit in windows.values()):
        raise ConfigError("only caches without a window can hold rows of several tokens")
    size = -(-block_size // whole.num_tokens) * whole.num_tokens
    widest = max((unit.num_bytes for unit in windows.values()), default=0)
    while size // whole.num_tokens * whole.num_bytes < widest:
        size *= 2
    page_bytes = size // whole.num_tokens * whole.num_bytes
    divisors = [count for count in range(1, size + 1) if size % count == 0]
    block_sizes: BlockSizes = {
        lifetime: max(count for count in divisors if count * unit.num_bytes <= page_bytes)
        for lifetime, unit in windows.items()
    }
    return page_bytes, {FULL: size, **block_sizes}
