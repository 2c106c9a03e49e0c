"""`ForwardBatch`: everything a model's forward needs, as one argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The views of one cache, over the shared pool. Possibly strided in the block axis."""

    k_cache: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim]"""
    v_cache: Tensor
    """`k_cache` itself where the cache has one plane."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Attention metadata per layout group, and each layer's cache and group."""

    groups: Sequence[AttentionMeta]
    cache_groups: Sequence[int]
    """Cache index -> index into `groups`."""
    caches: Sequence[LayerCache]
    """By the index that the model gave them in `layer_kv`."""
    handed_on: dict[str, Tensor] = field(default_factory=dict)
    """What a layer found in this step for later layers, under names that they agree on."""

    def of_cache(self, index: int) -> tuple[AttentionMeta, LayerCache]:
        return self.groups[self.cache_groups[index]], self.caches[index]


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Which tokens of a step stand for images, and what takes the place of their embeddings."""

    is_image: Tensor
    """[T] bool"""
    embeddings: Tensor
    """[N, hidden_size], in the model's dtype."""
    rows: Tensor
    """[N] int64, ascending: the tokens of the step that `embeddings` belong to."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's packed tokens. A model sees this and nothing else."""

    input_ids: Tensor
    """[T] int32"""
    positions: Tensor
    """[T] int64"""
    attention: AttentionBatch
    images: ImageRows | None = None
    """None where no token of the step stands for an image."""
    history: Tensor | None = None
    """[B, n] int32, the ids of the n tokens before each request's first one, negative before the
    start; for models with a `history_len` of n. Others do not look at it."""
