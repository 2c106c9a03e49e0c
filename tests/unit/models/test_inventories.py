"""Every tensor of the released checkpoints is accounted for: name, shape and stored type.

The indices are written down here from what was released, not derived from the models; the totals
are those of the released files. No weights are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.models.synthetic import released_entries
from deepinfer_core.ops.table import reference_table
from deepinfer_core.weights.quant.schemes import decode, keep_codes
from deepinfer_core.weights.source import TensorEntry
from deepinfer_core.weights.stored import STORED_DTYPES
from deepinfer_core.weights.strict import check_names
from torch import Tensor, nn

Index = dict[str, TensorEntry]
Part = Iterator[tuple[str, TensorEntry]]
YARN = {"type": "yarn", "beta_fast": 32, "beta_slow": 1}
FLOATS = ("BF16", "F32")


def entry(dtype: str, *shape: int) -> TensorEntry:
    return TensorEntry(shape, dtype, dtype in FLOATS)


def blocks(size: int, block: int) -> int:
    return -(-size // block)


class V4(NamedTuple):
    """The sizes that V4 and V4.1 have in common."""

    hidden: int
    heads: int
    q_rank: int
    groups: int
    experts: int
    inner: int
    block: int
    image_bias: bool = False
    index_heads: int = 64

    def fp8(self, name: str, rows: int, columns: int) -> Part:
        yield f"{name}.weight", entry("F8_E4M3", rows, columns)
        grid = blocks(rows, self.block), blocks(columns, self.block)
        yield f"{name}.scale", entry("F8_E8M0", *grid)

    def fp4(self, name: str, rows: int, columns: int) -> Part:
        yield f"{name}.weight", entry("I8", rows, columns // 2)
        yield f"{name}.scale", entry("F8_E8M0", rows, columns // 32)

    def block_of(self, layer: str, experts: int, *, hashed: bool = False) -> Part:
        """A layer without what compresses."""
        size, inner, attn, ffn = self.hidden, self.inner, f"{layer}.attn", f"{layer}.ffn"
        yield from self.fp8(f"{attn}.wq_a", self.q_rank, size)
        yield f"{attn}.q_norm.weight", entry("BF16", self.q_rank)
        yield from self.fp8(f"{attn}.wq_b", self.heads * 512, self.q_rank)
        yield from self.fp8(f"{attn}.wkv", 512, size)
        yield f"{attn}.kv_norm.weight", entry("BF16", 512)
        yield from self.fp8(f"{attn}.wo_a", self.groups * 1024, self.heads * 512 // self.groups)
        yield from self.fp8(f"{attn}.wo_b", size, self.groups * 1024)
        yield f"{attn}.attn_sink", entry("F32", self.heads)
        for sublayer in ("attn", "ffn"):
            yield f"{layer}.{sublayer}_norm.weight", entry("BF16", size)
            yield f"{layer}.hc_{sublayer}_fn", entry("F32", 24, 4 * size)
            yield f"{layer}.hc_{sublayer}_base", entry("F32", 24)
            yield f"{layer}.hc_{sublayer}_scale", entry("F32", 3)
        yield f"{ffn}.gate.weight", entry("BF16", experts, size)
        if hashed:
            yield f"{ffn}.gate.tid2eid", entry("I64", 129280, 6)
        else:
            yield f"{ffn}.gate.bias", entry("F32", experts)
        if self.image_bias:
            yield f"{ffn}.gate.bias_vl", entry("F32", experts)
        for expert in range(experts):
            for name, shape in (
                ("w1", (inner, size)),
                ("w2", (size, inner)),
                ("w3", (inner, size)),
            ):
                yield from self.fp4(f"{ffn}.experts.{expert}.{name}", *shape)
        for name, shape in (("w1", (inner, size)), ("w2", (size, inner)), ("w3", (inner, size))):
            yield from self.fp8(f"{ffn}.shared_experts.{name}", *shape)

    def ends(self) -> Part:
        yield "embed.weight", entry("BF16", 129280, self.hidden)
        yield "head.weight", entry("BF16", 129280, self.hidden)
        yield "norm.weight", entry("BF16", self.hidden)

    def hc_head(self, prefix: str) -> Part:
        yield f"{prefix}hc_head_fn", entry("F32", 4, 4 * self.hidden)
        yield f"{prefix}hc_head_base", entry("F32", 4)
        yield f"{prefix}hc_head_scale", entry("F32", 1)


def v4_compressor(name: str, ratio: int, channels: int, width: int, hidden: int) -> Part:
    for part in ("wkv", "wgate"):
        yield f"{name}.{part}.weight", entry("BF16", channels, hidden)
    yield f"{name}.ape", entry("F32", ratio, channels)
    yield f"{name}.norm.weight", entry("BF16", width)


def v4_index(sizes: V4, ratios: list[int]) -> Index:
    """V4-Flash and V4-Pro of April 2026."""
    found: Index = dict([*sizes.ends(), *sizes.hc_head("")])
    for layer, ratio in enumerate(ratios):
        attn = f"layers.{layer}.attn"
        found.update(sizes.block_of(f"layers.{layer}", sizes.experts, hashed=layer < 3))
        if ratio == 128:
            found.update(v4_compressor(f"{attn}.compressor", 128, 512, 512, sizes.hidden))
        if ratio == 4:
            found.update(v4_compressor(f"{attn}.compressor", 4, 1024, 512, sizes.hidden))
            indexer = f"{attn}.indexer"
            found.update(sizes.fp8(f"{indexer}.wq_b", 8192, sizes.q_rank))
            found[f"{indexer}.weights_proj.weight"] = entry("BF16", 64, sizes.hidden)
            found.update(v4_compressor(f"{indexer}.compressor", 4, 256, 128, sizes.hidden))
    found.update(sizes.block_of("mtp.0", sizes.experts))
    for name in ("e_proj", "h_proj"):
        found.update(sizes.fp8(f"mtp.0.{name}", sizes.hidden, sizes.hidden))
    for name in ("enorm", "hnorm", "norm"):
        found[f"mtp.0.{name}.weight"] = entry("BF16", sizes.hidden)
    found.update(sizes.hc_head("mtp.0."))
    return found


def v41_index(sizes: V4, table_rows: tuple[int, int]) -> Index:
    """V4.1-Flash."""
    found: Index = dict(sizes.ends())
    for layer in range(40):
        found.update(sizes.block_of(f"layers.{layer}", sizes.experts))
    for layer in (2, 8, 14, 20):
        compressor, indexer = (f"layers.{layer}.attn.{part}" for part in ("compressor", "indexer"))
        found[f"{compressor}.wkv.weight"] = entry("BF16", 512, 5120)
        found[f"{compressor}.norm.weight"] = entry("BF16", 512)
        if layer != 20:
            found[f"{compressor}.wgate.weight"] = entry("BF16", 512, 5120)
        found[f"{indexer}.wk.weight"] = entry("BF16", 128, 512)
        found[f"{indexer}.k_norm.weight"] = entry("BF16", 128)
    for layer in (2, 8, 14, 20, 24, 28, 32, 36):
        found.update(sizes.fp8(f"layers.{layer}.attn.indexer.wq_b", 4096, 1280))
        found[f"layers.{layer}.attn.indexer.weights_proj.weight"] = entry("BF16", 32, 5120)
    for layer, rows in zip((1, 14), table_rows, strict=True):
        engram = f"layers.{layer}.engram"
        found[f"{engram}.embed.weight"] = entry("F8_E4M3", rows, 256)
        found[f"{engram}.embed.scale"] = entry("F8_E8M0", rows, 8)
        found.update(sizes.fp8(f"{engram}.wkv", 25600, 6144))
        for name in ("q_weight", "k_weight"):
            found[f"{engram}.{name}"] = entry("BF16", 4, 5120)
    for stage in range(3):
        found.update(sizes.block_of(f"mtp.{stage}", 128))
    found.update(sizes.fp8("mtp.0.main_proj", 5120, 15360))
    found["mtp.0.main_norm.weight"] = entry("BF16", 5120)
    found["mtp.2.norm.weight"] = entry("BF16", 5120)
    for name in ("embed", "head"):
        found[f"mtp.2.markov_head.{name}.weight"] = entry("BF16", 129280, 256)
    found["mtp.2.confidence_head.proj.weight"] = entry("BF16", 1, 5376)
    found.update(v41_vision())
    return found


def v41_vision() -> Part:
    def linear(name: str, rows: int, columns: int) -> Part:
        yield f"{name}.weight", entry("BF16", rows, columns)
        yield f"{name}.bias", entry("BF16", rows)

    yield from linear("vision.patch_embed.proj", 1024, 588)
    for layer in range(32):
        block = f"vision.blocks.{layer}"
        for name in ("norm1", "norm2"):
            yield f"{block}.{name}.weight", entry("F32", 1024)
        yield from linear(f"{block}.attn.wqkv", 3072, 1024)
        yield from linear(f"{block}.attn.wo", 1024, 1024)
        yield f"{block}.mlp.w1.weight", entry("BF16", 5632, 1024)
        yield f"{block}.mlp.w2.weight", entry("BF16", 1024, 2816)
    yield "vision.norm.weight", entry("BF16", 1024)
    yield from linear("aligner.w1", 5120, 9216)
    yield from linear("aligner.w2", 5120, 5120)
    for name in ("start", "newline", "end"):
        yield f"image_{name}", entry("BF16", 5120)


def v3_index(*, with_indexer: bool) -> Index:
    """V3, or V3.2: layer 61 predicts a second token."""
    found: Index = {
        "model.embed_tokens.weight": entry("BF16", 129280, 7168),
        "model.norm.weight": entry("BF16", 7168),
        "lm_head.weight": entry("BF16", 129280, 7168),
    }

    def fp8(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = entry("F8_E4M3", rows, columns)
        found[f"{name}.weight_scale_inv"] = entry("F32", blocks(rows, 128), blocks(columns, 128))

    def mlp(name: str, inner: int) -> None:
        fp8(f"{name}.gate_proj", inner, 7168)
        fp8(f"{name}.up_proj", inner, 7168)
        fp8(f"{name}.down_proj", 7168, inner)

    for layer in range(62):
        path = f"model.layers.{layer}"
        fp8(f"{path}.self_attn.q_a_proj", 1536, 7168)
        fp8(f"{path}.self_attn.q_b_proj", 24576, 1536)
        fp8(f"{path}.self_attn.kv_a_proj_with_mqa", 576, 7168)
        fp8(f"{path}.self_attn.kv_b_proj", 32768, 512)
        fp8(f"{path}.self_attn.o_proj", 7168, 16384)
        norms = {"self_attn.q_a": 1536, "self_attn.kv_a": 512, "input_": 7168}
        for name, size in {**norms, "post_attention_": 7168}.items():
            separator = "_" if "." in name else ""
            found[f"{path}.{name}{separator}layernorm.weight"] = entry("BF16", size)
        if with_indexer:
            indexer = f"{path}.self_attn.indexer"
            fp8(f"{indexer}.wq_b", 8192, 1536)
            fp8(f"{indexer}.wk", 128, 7168)
            found[f"{indexer}.weights_proj.weight"] = entry("BF16", 64, 7168)
            for name in ("weight", "bias"):
                found[f"{indexer}.k_norm.{name}"] = entry("F32", 128)
        if layer < 3:
            mlp(f"{path}.mlp", 18432)
            continue
        found[f"{path}.mlp.gate.weight"] = entry("BF16", 256, 7168)
        found[f"{path}.mlp.gate.e_score_correction_bias"] = entry("F32", 256)
        for expert in range(256):
            mlp(f"{path}.mlp.experts.{expert}", 2048)
        mlp(f"{path}.mlp.shared_experts", 2048)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        found[f"model.layers.61.{name}.weight"] = entry("BF16", 7168)
    found["model.layers.61.eh_proj.weight"] = entry("BF16", 7168, 14336)
    for name in ("embed_tokens", "shared_head.head"):
        found[f"model.layers.61.{name}.weight"] = entry("BF16", 129280, 7168)
    return found


V3_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
V32_CONFIG = V3_CONFIG | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}
HYBRID: dict[str, Any] = {
    "vocab_size": 129280,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {**YARN, "factor": 16, "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576,
}
FP8 = {"quant_method": "fp8", "scale_fmt": "ue8m0"}
FLASH_CONFIG = HYBRID | {
    "architectures": ["DeepseekV4ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "num_hash_layers": 3,
    "index_n_heads": 64,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "expert_dtype": "fp4",
    "quantization_config": {**FP8, "weight_block_size": [128, 128]},
}
PRO_CONFIG = FLASH_CONFIG | {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}
TABLE_ROWS = (384006168, 384016682)
V41_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "image_token_id": 129264,
    "quantization_config": {**FP8, "weight_block_size": [32, 32], "expert_dtype": "fp4"},
    "text_config": HYBRID
    | {
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "q_lora_rank": 1280,
        "o_groups": 8,
        "moe_intermediate_size": 2304,
        "n_routed_experts": 384,
        "rms_norm_eps": 1e-20,
        "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": list(TABLE_ROWS),
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 16000000,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 99092,
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 128799,
        "dspark_target_layer_ids": [37, 38, 39],
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
        "dspark_num_experts_per_tok": 3,
    },
    "vision_config": {
        "num_hidden_layers": 32,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 2816,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 1024,
        "min_pixels": 295936,
        "max_wh_ratio": None,
    },
}
FLASH = V4(4096, 64, 1024, 8, 256, 2048, 128)
PRO = V4(7168, 128, 1536, 16, 384, 3072, 128)
V41 = V4(5120, 64, 1280, 8, 384, 2304, 32, image_bias=True)
RELEASED: dict[str, tuple[dict[str, Any], Callable[[], Index], int]] = {
    "v3": (V3_CONFIG, lambda: v3_index(with_indexer=False), 91_991),
    "v32": (V32_CONFIG, lambda: v3_index(with_indexer=True), 91_991 + 62 * 7),
    "v4_flash": (FLASH_CONFIG, lambda: v4_index(FLASH, [0, 0, *[4, 128] * 20, 4]), 69_187),
    "v4_pro": (PRO_CONFIG, lambda: v4_index(PRO, [128, 128, *[4, 128] * 29, 4]), 145_116),
    "v41_flash": (V41_CONFIG, lambda: v41_index(V41, TABLE_ROWS), 96_085),
}


class IndexSource:
    """Entries without data."""

    def __init__(self, entries: Index) -> None:
        self.entries = entries

    def read_into(self, name: str, destination: Tensor) -> None:
        raise AssertionError("there is no data")

    def read_rows(self, name: str, first_row: int, destination: Tensor) -> None:
        raise AssertionError("there is no data")


@cache
def index_of(released: str) -> Index:
    return RELEASED[released][1]()


@cache
def built(released: str) -> tuple[Any, Any]:
    """The model and its drafter, on the meta device."""
    fields = RELEASED[released][0]
    model_class = ModelRegistry().resolve(fields["architectures"][0])
    config = model_class.read_config(RawConfig(fields, "config.json"))
    ops = reference_table()
    with torch.device("meta"):
        model = model_class(config, ops, dtype="bfloat16")
    first_cache = len(model.layer_kv())
    return model, build_drafter(config, ops, dtype="bfloat16", first_cache=first_cache)


def load_names(released: str, module: Any, index: Index) -> list[str]:
    """What `load_weights` would read for a model or its drafter."""
    block = RELEASED[released][0]["quantization_config"]["weight_block_size"]
    views = checkpoint_views(module)
    source = keep_codes(decode(IndexSource(index), (block[0], block[1])), views)
    return check_names(views, source.entries, module.is_redundant, Path("released"))


def is_copy(name: str) -> bool:
    """Whether a tensor of V3's predicting layer repeats one of the model."""
    return name in (
        f"model.layers.61.{part}.weight" for part in ("embed_tokens", "shared_head.head")
    )


@pytest.mark.parametrize("released", RELEASED)
def test_every_released_tensor_has_one_place(released: str) -> None:
    index, (model, drafter) = index_of(released), built(released)
    assert len(index) == RELEASED[released][2]
    own, drafts = (load_names(released, module, index) for module in (model, drafter))
    assert not set(own) & set(drafts)
    scales = {name for name in index if name.endswith((".scale", "_scale_inv"))}
    unread = index.keys() - {*own, *drafts} - scales
    assert unread == set(filter(is_copy, index))


@pytest.mark.parametrize("released", RELEASED)
def test_what_is_written_is_what_was_released(released: str) -> None:
    """The formats of random weights, which follow from the models, are those of the files."""
    written, index = released_entries(RELEASED[released][0]), index_of(released)
    assert written.keys() == {name for name in index if not is_copy(name)}
    free = (".k_norm.weight", ".k_norm.bias", "vision.norm.weight")  # stored types are not known
    differing = {
        name: (found, index[name])
        for name, found in written.items()
        if found != index[name] and not name.endswith(free)
    }
    assert differing == {}


def test_the_numbers_of_parameters_are_those_of_the_reports() -> None:
    def count(index: Index, keep: Callable[[str], bool]) -> float:
        total = 0
        for name, found in index.items():
            if keep(name) and not name.endswith((".scale", "_scale_inv", "tid2eid")):
                packed = 2 if found.dtype == "I8" else 1
                total += packed * torch.Size(found.shape).numel()
        return round(total / 1e9, 1)

    v3, flash, v41 = index_of("v3"), index_of("v4_flash"), index_of("v41_flash")
    assert count(v3, lambda name: "layers.61." not in name) == 671.0
    assert count(flash, lambda name: not name.startswith("mtp.")) == 284.3
    assert count(v41, lambda name: ".engram.embed." in name) == 196.6


@pytest.mark.parametrize(
    ("released", "gigabytes"), [("v4_flash", 159.61), ("v4_pro", 864.7), ("v41_flash", 510.286)]
)
def test_the_bytes_are_those_of_the_files(released: str, gigabytes: float) -> None:
    total = sum(
        torch.Size(found.shape).numel() * STORED_DTYPES[found.dtype].itemsize
        for found in index_of(released).values()
    )
    digits = len(str(gigabytes).partition(".")[2])
    assert round(total / 1e9, digits) == gigabytes


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("layers.3.ffn.experts.255.w2.weight", None, r"\n  layers.3.ffn.experts.255.w2.scale"),
        ("layers.2.attn.indexer.wq_b.scale", None, "indexer.wq_b.weight_scale_inv is missing"),
        ("layers.0.attn.wkv.scale", entry("F8_E8M0", 4, 31), r"wkv.scale has shape \[4, 31\]"),
        ("layers.7.attn.attn_sink", entry("F32", 63), r"attn_sink: wanted \[64\] float32, found"),
        ("layers.1.ffn.gate.tid2eid", entry("F32", 129280, 6), "tid2eid: wanted .* int64, found"),
        ("layers.43.attn_norm.weight", entry("BF16", 4096), "layers.43.attn_norm.weight"),
    ],
)
def test_one_tensor_that_does_not_fit_is_named(
    name: str, changed: TensorEntry | None, message: str
) -> None:
    index = dict(index_of("v4_flash"))
    index.pop(name, None)
    if changed is not None:
        index[name] = changed
    model: nn.Module = built("v4_flash")[0]
    with pytest.raises(ModelLoadError, match=message):
        load_names("v4_flash", model, index)
