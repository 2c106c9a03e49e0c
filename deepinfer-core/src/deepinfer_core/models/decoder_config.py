"""`DecoderConfig`: the facts of a decoder-only transformer, normalised over model families.

Torch-free. What differs between families (biases, windows, experts) is decided by each model
class in its `read_config`; the common part is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.format import PLAIN_FORMAT, KVFormat, row_kv
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.rope_config import RopeConfig, read_rope
from deepinfer_core.ops.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Routed experts of the sparse layers."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    renormalize: bool
    """The weights of the chosen experts sum to 1."""
    layers: frozenset[int]
    """Layers that have experts; the others have one dense MLP."""
    scoring: str = "softmax"
    """As in the op `moe.route`."""
    has_bias: bool = False
    """The choice of experts is corrected by a learned bias."""
    num_groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    """Factor of the weights."""
    wide_router: bool = False
    """The router computes in float32, whatever the model's dtype."""
    num_shared_experts: int = 0
    """Experts that every token goes through, as one MLP of so many times the size."""
    hash_layers: frozenset[int] = frozenset()
    """Layers whose experts follow from the token alone; only their weights are computed."""
    has_image_bias: bool = False
    """Tokens of images have a bias of their own."""
    temperature: float = 1.0
    """The router's scores are divided by it first."""
    limit: float | None = None
    """Bound of the activations, as in the op `act.silu_mul`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1)."""

    q_rank: int | None
    """None: queries are projected at once."""
    kv_rank: int
    nope_head_dim: int
    """Of the part of a query or key that is not rotated."""
    rope_head_dim: int
    v_head_dim: int

    @property
    def q_head_dim(self) -> int:
        return self.nope_head_dim + self.rope_head_dim

    @property
    def row_dim(self) -> int:
        """Of what the cache holds per token: the latent and the rotated key."""
        return self.kv_rank + self.rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """The lightning indexer of sparse attention (DeepSeek-AI 2025, DeepSeek-V3.2)."""

    num_heads: int
    head_dim: int
    top_k: int
    """Tokens that a query attends to, its own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Everything that building a decoder needs."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    """Longest context, rope scaling included."""
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """Per layer: tokens visible including the current one; None sees everything."""
    rope: RopeConfig
    attention_scale: float
    moe: MoeConfig | None = None
    latent: LatentConfig | None = None
    """Instead of keys and values per head; then `head_dim` is that of a query."""
    indexer: IndexerConfig | None = None
    """What picks the tokens that latent attention sees."""
    num_predict_layers: int = 0
    """Layers stored behind the last that predict further tokens, for a drafter."""
    kv_format: KVFormat = PLAIN_FORMAT

    @property
    def row_record(self) -> Record | None:
        """What rows of latents are; None: plain."""
        if (latent := self.latent) is None:
            return None
        return self.kv_format.row_record(latent.row_dim, latent.rope_head_dim)

    @property
    def key_record(self) -> Record | None:
        """What keys of indexers are; the released code turns them."""
        if self.indexer is None:
            return None
        return self.kv_format.key_record(self.indexer.head_dim, is_turned=True)

    def latent_kvs(self, dtype: str) -> list[LayerKV]:
        """What a layer of latents stores, and its indexer if it has one."""
        kinds = []
        if self.latent is not None:
            kinds.append(row_kv(self.latent.row_dim, dtype, "latents", record=self.row_record))
        if self.indexer is not None:
            width = self.indexer.head_dim
            kinds.append(row_kv(width, dtype, "index keys", record=self.key_record))
        return kinds


def read_decoder_config(
    raw: RawConfig,
    *,
    windows: Sequence[int | None],
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    default_head_dim: int | None = None,
    latent: LatentConfig | None = None,
) -> DecoderConfig:
    """Read the fields that all families share; the family passes the rest, and adds experts.

    Raises:
        ModelLoadError: a field is missing, malformed, or asks for what no model here computes.
    """
    if (activation := raw.text("hidden_act", "silu")) != "silu":
        raise ModelLoadError(f"{raw.source}: hidden_act {activation!r}; only silu is supported")
    num_q_heads = raw.size("num_attention_heads")
    num_kv_heads = raw.size("num_key_value_heads", num_q_heads)
    if num_q_heads % num_kv_heads:
        raise ModelLoadError(
            f"{raw.source}: {num_q_heads} query heads do not divide over {num_kv_heads} kv heads"
        )
    head_dim = read_head_dim(raw, default_head_dim) if latent is None else latent.q_head_dim
    rope = read_rope(
        raw,
        head_dim=head_dim if latent is None else latent.rope_head_dim,
        max_position=raw.size("max_position_embeddings"),
    )
    return DecoderConfig(
        vocab_size=raw.size("vocab_size"),
        hidden_size=raw.size("hidden_size"),
        intermediate_size=raw.size("intermediate_size"),
        num_layers=raw.size("num_hidden_layers"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=raw.number("rms_norm_eps", 1e-6),
        max_position=rope.reachable_position,
        tie_word_embeddings=raw.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        windows=tuple(windows),
        rope=rope,
        attention_scale=head_dim**-0.5,
        latent=latent,
    )


def read_head_dim(raw: RawConfig, default: int | None = None) -> int:
    """The stated size of a head, else the default, else the hidden size split over the heads."""
    split = raw.size("hidden_size") // raw.size("num_attention_heads")
    return raw.size("head_dim", default or split)


def read_windows(
    raw: RawConfig, *, window_size: int | None, first_window_layer: int = 0
) -> tuple[int | None, ...]:
    """Give each layer its window.

    Args:
        window_size: tokens visible including the current one; None: no layer has a window.
        first_window_layer: without an explicit `layer_types` list, layers before it see all.
    """
    num_layers = raw.size("num_hidden_layers")
    types = raw.optional_list("layer_types", str)
    if types is None:
        return tuple(window_size if i >= first_window_layer else None for i in range(num_layers))
    if len(types) != num_layers:
        raise ModelLoadError(
            f"{raw.source}: {len(types)} layer_types for {num_layers} hidden layers"
        )
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ModelLoadError(
            f"{raw.source}: layer types {', '.join(unknown)} are unknown; "
            "known: full_attention, sliding_attention"
        )
    if window_size is None and "sliding_attention" in types:
        raise ModelLoadError(f"{raw.source}: layer_types has windows but no sliding_window is set")
    return tuple(window_size if kind == "sliding_attention" else None for kind in types)
