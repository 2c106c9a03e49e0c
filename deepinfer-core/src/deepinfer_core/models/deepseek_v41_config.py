"""`V41Config`: the facts of a DeepSeek-V4.1, read as released, and what caches follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from deepinfer_core.errors import ConfigError, ModelLoadError
from deepinfer_core.kv.format import row_kv
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.deepseek_v4_config import V4Config, read_hybrid_config
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.vision.config import VisionConfig, read_vision_config
from deepinfer_core.ops.records import Record, make_record

RATIOS = {0: "window only", 1: "a row per token", 2: "a row per two tokens"}
V4_FIELDS = ("num_hash_layers", "compress_rates", "expert_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateConfig:
    """The choice of blocks that later indexers keep to."""

    source_layer: int
    """Whose indexer chooses; those behind it obey."""
    num_blocks: int
    rows_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramConfig:
    """The n-gram memory."""

    layers: tuple[int, ...]
    """Before which the memory speaks."""
    num_rows: tuple[int, ...]
    """Of each layer's table."""
    max_ngram: int
    first_bucket: int
    """No table of an n-gram and head has fewer rows than this, less one."""
    num_heads: int
    row_width: int
    pad_class: int
    """Stands for what is before the start, and for images."""
    num_classes: int
    """Of tokens: those that look alike hash alike."""
    is_quantized: bool

    @property
    def num_buckets(self) -> int:
        """Rows that a token reads."""
        return (self.max_ngram - 1) * self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class V41Config(V4Config):
    """Everything that building a DeepSeek-V4.1 needs.

    `compress_ratios` is about the rows that a layer reads; only sources write any.

    Raises:
        ConfigError: decoder replay, with a memory behind the last source of rows.
    """

    kv_sources: tuple[int, ...]
    """Layers that compress; those behind each read its rows, up to the next."""
    index_sources: tuple[int, ...]
    """Layers that pick rows; those behind each take its choice, up to the next."""
    candidates: CandidateConfig | None
    engram: EngramConfig | None
    image_token_id: int | None
    decoder_replay: bool = False
    """Behind the last source, only the last tokens of a chunk are computed: approximate."""
    vision: VisionConfig | None

    def __post_init__(self) -> None:
        if not self.decoder_replay or self.engram is None:
            return
        late = [layer for layer in self.engram.layers if layer > self.last_source]
        if late:
            raise ConfigError(
                f"the n-gram memory speaks before layers {late}, but behind layer "
                f"{self.last_source}, the last source of rows, not all tokens are computed",
                field="cache.decoder_replay",
                value=True,
                allowed="false with this model",
            )

    def kv_source(self, layer: int) -> int | None:
        """Whose rows a layer reads; None: no rows."""
        return _last(self.kv_sources, layer) if self.compress_ratios[layer] else None

    @property
    def window_record(self) -> Record | None:
        """What rows of windows are: never of four bits."""
        if self.kv_format.rows != "288":
            return self.row_record
        return make_record("528", self.head_dim)

    @property
    def key_record(self) -> Record | None:
        """What keys of indexers are; nothing turns them."""
        return self.kv_format.key_record(self.indexer.head_dim, is_turned=False)

    def window_kv(self, dtype: str) -> LayerKV:
        """What the window of a layer stores, those of a drafter included."""
        return replace(V4Config.window_kv(self, dtype), allows_replay=True)

    @property
    def last_source(self) -> int:
        """The layer behind which no rows are written any more; -1: none writes any."""
        return self.kv_sources[-1] if self.kv_sources else -1

    @property
    def history_len(self) -> int:
        """Tokens before the first of a chunk that its computation depends on by their ids."""
        return self.engram.max_ngram - 1 if self.engram else 0


@dataclass(frozen=True, slots=True)
class SourceCaches:
    """Indices of the caches that a source writes."""

    raw: int | None
    """Values and gates of the tokens whose groups are open; None where a token is a group."""
    rows: int
    keys: int
    """Of the indexers."""


@dataclass(frozen=True, slots=True)
class SharedCaches:
    """Indices of the caches that a layer reads."""

    window: int
    source: SourceCaches | None


def plan_shared_caches(config: V41Config, dtype: str) -> tuple[list[LayerKV], list[SharedCaches]]:
    """What each cache stores, and which are whose. What layers share is there once.

    Args:
        dtype: of the model.
    """
    layer_kvs: list[LayerKV] = []

    def add(kind: LayerKV) -> int:
        layer_kvs.append(kind)
        return len(layer_kvs) - 1

    def add_source(ratio: int) -> SourceCaches:
        raw = None
        if ratio > 1:
            wide = row_kv(2 * config.head_dim, "float32", "open groups", window_size=ratio)
            # A hit ends where a group does, so it needs no raw rows.
            raw = add(replace(wide, needed_by_hits=False, allows_replay=True))
        rows, keys = (
            row_kv(width, dtype, purpose, tokens_per_row=ratio, record=record)
            for width, purpose, record in (
                (config.head_dim, "rows", config.row_record),
                (config.indexer.head_dim, "index keys", config.key_record),
            )
        )
        return SourceCaches(raw, add(rows), add(keys))

    layers = []
    sources: dict[int, SourceCaches] = {}
    window = config.window_kv(dtype)
    for layer, ratio in enumerate(config.compress_ratios):
        own = add(window)
        source = config.kv_source(layer)
        if source == layer:
            sources[layer] = add_source(ratio)
        layers.append(SharedCaches(own, None if source is None else sources[source]))
    return layer_kvs, layers


def read_v41_config(raw: RawConfig) -> V41Config:
    """Read a released configuration, whose model is in `text_config`.

    Raises:
        ModelLoadError: a field is missing, malformed, or of another family.
    """
    text = raw.section("text_config")
    if text is None:
        raise ModelLoadError(
            f"{raw.source}: text_config is missing; a DeepSeek-V4.1 has its model there"
        )
    for name in V4_FIELDS:
        if name in raw.fields or name in text.fields:
            raise ModelLoadError(f"{raw.source}: {name} is a field of DeepSeek-V4, not of V4.1")
    base = read_hybrid_config(text, RATIOS)
    base = replace(
        base,
        norms_heads=False,
        moe=replace(base.moe, has_image_bias=True, temperature=text.number("gate_temp", 1.0)),
    )
    kv_sources = _read_layers(text, "kv_source_layer_ids", base.num_layers)
    index_sources = _read_layers(text, "index_source_layer_ids", base.num_layers)
    _check_sources(text, base.compress_ratios, kv_sources, index_sources)
    return V41Config(
        **{field.name: getattr(base, field.name) for field in fields(base)},
        kv_sources=kv_sources,
        index_sources=index_sources,
        candidates=_read_candidates(text, kv_sources, index_sources),
        engram=_read_engram(text, base.num_layers, raw.section("quantization_config") is not None),
        image_token_id=raw.optional_integer("image_token_id"),
        vision=read_vision_config(raw),
    )


def _last(sources: Sequence[int], layer: int) -> int | None:
    return max((source for source in sources if source <= layer), default=None)


def _read_layers(raw: RawConfig, name: str, num_layers: int) -> tuple[int, ...]:
    layers = raw.optional_list(name, int) or []
    if layers != sorted(set(layers)) or any(not 0 <= layer < num_layers for layer in layers):
        raise raw.malformed(name, layers, f"ascending numbers of layers below {num_layers}")
    return tuple(layers)


def _check_sources(
    raw: RawConfig, ratios: Sequence[int], kv_sources: Sequence[int], index_sources: Sequence[int]
) -> None:
    """Each layer that reads rows must find its source, of its ratio, and somebody's choice."""
    for layer in index_sources:
        if not ratios[layer]:
            raise raw.malformed(f"compress_ratios[{layer}]", 0, "that of a source")
    for layer in kv_sources:
        if layer not in index_sources:
            raise raw.malformed(
                "index_source_layer_ids", list(index_sources), f"with {layer}, a source of rows"
            )
    for layer, ratio in enumerate(ratios):
        if not ratio:
            continue
        source = _last(kv_sources, layer)
        if source is None or ratios[source] != ratio:
            found = "no source" if source is None else f"source {source} of {ratios[source]}"
            raise raw.malformed(
                f"compress_ratios[{layer}]",
                ratio,
                f"that of its source in kv_source_layer_ids {list(kv_sources)}: {found}",
            )


def _read_candidates(
    raw: RawConfig, kv_sources: Sequence[int], index_sources: Sequence[int]
) -> CandidateConfig | None:
    layer = raw.fields.get("candidate_source_layer_id")
    if layer is None or layer == -1:
        return None
    if layer not in index_sources:
        raise raw.malformed(
            "candidate_source_layer_id", layer, f"-1 or one of {list(index_sources)}"
        )
    if layer < kv_sources[-1]:
        wanted = f"at or behind {kv_sources[-1]}, the last source of rows: blocks are of its rows"
        raise raw.malformed("candidate_source_layer_id", layer, wanted)
    return CandidateConfig(
        source_layer=layer,
        num_blocks=raw.size("candidate_topk_blocks"),
        rows_per_block=raw.size("candidate_block_size"),
    )


def _read_engram(raw: RawConfig, num_layers: int, is_quantized: bool) -> EngramConfig | None:
    layers = _read_layers(raw, "engram_layer_ids", num_layers)
    if not layers:
        return None
    num_rows = raw.optional_list("engram_num_embeddings", int) or []
    if len(num_rows) != len(layers):
        raise raw.malformed(
            "engram_num_embeddings", num_rows, f"one number per layer of {list(layers)}"
        )
    max_ngram = raw.size("engram_max_ngram_size")
    if max_ngram < 2:
        raise raw.malformed("engram_max_ngram_size", max_ngram, "at least 2")
    num_classes, pad = raw.size("engram_compressed_vocab_size"), raw.integer("engram_pad_token_id")
    if pad >= num_classes:
        raise raw.malformed("engram_pad_token_id", pad, f"below {num_classes} classes")
    return EngramConfig(
        layers=layers,
        num_rows=tuple(num_rows),
        max_ngram=max_ngram,
        first_bucket=raw.size("engram_vocab_size"),
        num_heads=raw.size("engram_n_heads"),
        row_width=raw.size("engram_head_dim"),
        pad_class=pad,
        num_classes=num_classes,
        is_quantized=is_quantized,
    )
