"""`V4Config`: the facts of a DeepSeek-V4, read as released, and what caches follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.format import PLAIN_FORMAT, KVFormat, row_kv
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.decoder_config import IndexerConfig, MoeConfig
from deepinfer_core.models.drafters.dspark_config import DsparkConfig, read_dspark_config
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.rope_config import RopeConfig, read_rope
from deepinfer_core.ops.records import Record

SPARSE_RATIO, HEAVY_RATIO = 4, 128
RATIOS = {
    0: "window only",
    SPARSE_RATIO: "compressed sparse attention",
    HEAVY_RATIO: "heavily compressed attention",
}

AnyV4 = TypeVar("AnyV4", bound="V4Config")


V41_FIELDS = ("kv_source_layer", "index_source_layer", "candidate_", "engram_", "text_config")
"""How fields begin that only V4.1 has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConfig:
    """Hyper-connections."""

    num_streams: int
    num_iters: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Config:
    """Everything that building a DeepSeek-V4 needs."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_q_heads: int
    head_dim: int
    rope_head_dim: int
    """The last dims of a head, which rotate."""
    q_rank: int
    output_groups: int
    output_rank: int
    """Of each group."""
    window_size: int
    compress_ratios: tuple[int, ...]
    """Of each layer: how many tokens it compresses into one row; 0: none."""
    indexer: IndexerConfig
    hyper: HyperConfig
    moe: MoeConfig
    norm_eps: float
    max_position: int
    rope: RopeConfig
    """Of layers that compress nothing."""
    compress_rope: RopeConfig
    norms_heads: bool = True
    """Query heads are normalised each by itself, without a weight."""
    num_predict_layers: int = 0
    """Layers stored behind the last that predict further tokens; with DSpark it says nothing."""
    dspark: DsparkConfig | None = None
    kv_format: KVFormat = PLAIN_FORMAT

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def row_record(self) -> Record | None:
        """What compressed rows are; None: plain."""
        return self.kv_format.row_record(self.head_dim, self.rope_head_dim)

    @property
    def window_record(self) -> Record | None:
        """What rows of windows are."""
        return self.row_record

    @property
    def key_record(self) -> Record | None:
        """What keys of indexers are; the released code turns them."""
        return self.kv_format.key_record(self.indexer.head_dim, is_turned=True)

    @property
    def attention_scheme(self) -> str | None:
        """Under which attention to a window and to rows is bound."""
        names = [record.name for record in (self.window_record, self.row_record) if record]
        return "+".join(dict.fromkeys(names)) or None

    def window_kv(self, dtype: str) -> LayerKV:
        """What the window of a layer stores."""
        return row_kv(
            self.head_dim,
            dtype,
            "windows",
            window_size=self.window_size,
            record=self.window_record,
        )


def drafter_layers(config: AnyV4) -> AnyV4:
    """A target's configuration for the layers of its drafter: they compress and hash nothing."""
    moe, dspark = replace(config.moe, hash_layers=frozenset()), config.dspark
    num_layers = config.num_predict_layers
    if dspark is not None:
        num_layers, top_k = dspark.num_stages, dspark.num_experts_per_token
        moe = replace(moe, num_experts=dspark.num_experts, num_experts_per_token=top_k)
    return replace(config, num_layers=num_layers, compress_ratios=(0,) * num_layers, moe=moe)


@dataclass(frozen=True, slots=True)
class CompressorCaches:
    """Indices of a compressor's caches."""

    raw: int
    """Values and gates of the tokens whose groups are open, and of the group before."""
    rows: int


@dataclass(frozen=True, slots=True)
class LayerCaches:
    """Indices of a layer's caches."""

    window: int
    compressor: CompressorCaches | None = None
    indexer: CompressorCaches | None = None


def plan_caches(config: V4Config, dtype: str) -> tuple[list[LayerKV], list[LayerCaches]]:
    """What each cache stores, and which are whose.

    Args:
        dtype: of the model.
    """
    layer_kvs: list[LayerKV] = []

    def add(kind: LayerKV) -> int:
        layer_kvs.append(kind)
        return len(layer_kvs) - 1

    def add_compressor(
        width: int, ratio: int, purpose: str, record: Record | None
    ) -> CompressorCaches:
        overlaps = ratio == SPARSE_RATIO
        channels = 2 * width if overlaps else width
        reach = 2 * ratio if overlaps else ratio
        raw = row_kv(2 * channels, "float32", "open groups", window_size=reach)
        # A hit ends where a group of every ratio does.
        raw = replace(raw, needed_by_hits=overlaps)
        rows = row_kv(width, dtype, purpose, tokens_per_row=ratio, record=record)
        return CompressorCaches(add(raw), add(rows))

    layers = []
    window = config.window_kv(dtype)
    for ratio in config.compress_ratios:
        caches = LayerCaches(add(window))
        if ratio:
            compressor = add_compressor(config.head_dim, ratio, "rows", config.row_record)
            caches = replace(caches, compressor=compressor)
        if ratio == SPARSE_RATIO:
            width = config.indexer.head_dim
            indexer = add_compressor(width, ratio, "index keys", config.key_record)
            caches = replace(caches, indexer=indexer)
        layers.append(caches)
    return layer_kvs, layers


def read_v4_config(raw: RawConfig) -> V4Config:
    """Read a released configuration.

    Raises:
        ModelLoadError: a field is missing, malformed, or of another family.
    """
    for name in raw.fields:
        if name.startswith(V41_FIELDS):
            raise ModelLoadError(f"{raw.source}: {name} is a field of DeepSeek-V4.1, not of V4")
    return read_hybrid_config(raw, RATIOS)


def read_hybrid_config(raw: RawConfig, ratios: Mapping[int, str]) -> V4Config:
    """Read what V4 and V4.1 have in common.

    Args:
        ratios: allowed entries of `compress_ratios`, and what they stand for.

    Raises:
        ModelLoadError: a field is missing or malformed.
    """
    if raw.flag("tie_word_embeddings", False):
        raise ModelLoadError(f"{raw.source}: tie_word_embeddings is not supported")
    num_layers, head_dim = raw.size("num_hidden_layers"), raw.size("head_dim")
    rope_head_dim = raw.size("qk_rope_head_dim")
    if rope_head_dim > head_dim or rope_head_dim % 2:
        raise raw.malformed("qk_rope_head_dim", rope_head_dim, f"even and at most {head_dim}")
    num_q_heads, output_groups = raw.size("num_attention_heads"), raw.size("o_groups")
    if num_q_heads % output_groups:
        raise raw.malformed("o_groups", output_groups, f"a divisor of {num_q_heads} heads")
    rope, compress_rope = _read_ropes(raw, rope_head_dim)
    return V4Config(
        vocab_size=raw.size("vocab_size"),
        hidden_size=raw.size("hidden_size"),
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        head_dim=head_dim,
        rope_head_dim=rope_head_dim,
        q_rank=raw.size("q_lora_rank"),
        output_groups=output_groups,
        output_rank=raw.size("o_lora_rank"),
        window_size=raw.size("sliding_window"),
        compress_ratios=_read_ratios(raw, num_layers, ratios),
        indexer=IndexerConfig(
            num_heads=raw.size("index_n_heads"),
            head_dim=raw.size("index_head_dim"),
            top_k=raw.size("index_topk"),
        ),
        hyper=HyperConfig(
            num_streams=raw.size("hc_mult"),
            num_iters=raw.size("hc_sinkhorn_iters"),
            eps=raw.number("hc_eps"),
        ),
        moe=_read_moe(raw, num_layers),
        norm_eps=raw.number("rms_norm_eps", 1e-6),
        max_position=raw.size("max_position_embeddings"),
        rope=rope,
        compress_rope=compress_rope,
        num_predict_layers=raw.integer("num_nextn_predict_layers", 0),
        dspark=read_dspark_config(raw),
    )


def _read_ratios(raw: RawConfig, num_layers: int, allowed: Mapping[int, str]) -> tuple[int, ...]:
    ratios = raw.optional_list("compress_ratios", int)
    # Layers that predict further tokens follow those of the model.
    if ratios is None or len(ratios) < num_layers:
        found = 0 if ratios is None else len(ratios)
        raise ModelLoadError(
            f"{raw.source}: compress_ratios has {found} entries, num_hidden_layers is {num_layers}"
        )
    for layer, ratio in enumerate(ratios[:num_layers]):
        if ratio not in allowed:
            known = ", ".join(f"{value} ({what})" for value, what in allowed.items())
            raise raw.malformed(f"compress_ratios[{layer}]", ratio, f"one of {known}")
    for layer, ratio in enumerate(ratios[num_layers:], num_layers):
        if ratio:
            wanted = f"0: behind the {num_layers} layers are those that predict further tokens"
            raise raw.malformed(f"compress_ratios[{layer}]", ratio, wanted)
    return tuple(ratios[:num_layers])


def _read_ropes(raw: RawConfig, rope_head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    max_position = raw.size("max_position_embeddings")
    scaled = read_rope(raw, head_dim=rope_head_dim, max_position=max_position)
    scaled = replace(scaled, rotary_dim=rope_head_dim, attention_factor=1.0, is_interleaved=True)
    plain = replace(scaled, rope_type="default", factor=1.0)
    return plain, replace(scaled, theta=raw.number("compress_rope_theta"))


def _read_moe(raw: RawConfig, num_layers: int) -> MoeConfig:
    num_experts, top_k = raw.size("n_routed_experts"), raw.size("num_experts_per_tok")
    if top_k > num_experts:
        raise raw.malformed("num_experts_per_tok", top_k, f"at most {num_experts} experts")
    if (method := raw.text("topk_method", "noaux_tc")) != "noaux_tc":
        raise ModelLoadError(f"{raw.source}: topk_method {method!r}; only noaux_tc is supported")
    if (scoring := raw.text("scoring_func", "sqrtsoftplus")) != "sqrtsoftplus":
        raise ModelLoadError(
            f"{raw.source}: scoring_func {scoring!r}; only sqrtsoftplus is supported"
        )
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=top_k,
        intermediate_size=raw.size("moe_intermediate_size"),
        renormalize=raw.flag("norm_topk_prob", True),
        layers=frozenset(range(num_layers)),
        scoring=scoring,
        has_bias=True,
        scale=raw.number("routed_scaling_factor", 1.0),
        wide_router=True,
        num_shared_experts=raw.integer("n_shared_experts", 1),
        hash_layers=frozenset(range(raw.integer("num_hash_layers", 0))),
        limit=raw.optional_number("swiglu_limit"),
    )
