"""DeepSeek-V4: what its configuration means, and how much its caches hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.format import row_kv
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.kv.prefix_index import PrefixIndex
from deepinfer_core.models.deepseek_v4 import DeepseekV4
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.released import V4_FLASH, V4_PRO
from deepinfer_core.testing.tiny import tiny_config


def on_meta(config: dict[str, Any]) -> DeepseekV4:
    parsed = DeepseekV4.read_config(RawConfig(config, "config.json"))
    with torch.device("meta"):
        return DeepseekV4(parsed, reference_table(), dtype="bfloat16")


@pytest.mark.parametrize(
    ("config", "released"), [(V4_FLASH, 69_187), (V4_PRO, 145_116)], ids=["flash", "pro"]
)
def test_every_released_tensor_is_counted(config: dict[str, Any], released: int) -> None:
    """The model's own, the scales beside them, and the layer that predicts a second token."""
    names = checkpoint_views(on_meta(config)).keys()
    num_scales = sum(".experts." in name or _is_fp8(name) for name in names)
    num_experts = config["n_routed_experts"]
    # Its matrices with their scales, and 19 vectors and coefficients.
    num_predicting = 2 * (3 * num_experts + 3 + 5 + 2) + 19
    assert len(names) + num_scales + num_predicting == released


def _is_fp8(name: str) -> bool:
    projections = (".wq_a.", ".wq_b.", ".wkv.", ".wo_a.", ".wo_b.")
    is_compressor = ".compressor." in name
    return ".shared_experts." in name or (
        not is_compressor and any(part in name for part in projections)
    )


def test_shapes_are_those_that_are_released() -> None:
    views = checkpoint_views(on_meta(V4_FLASH))
    expected = {
        "embed.weight": (129280, 4096),
        "hc_head_fn": (4, 16384),
        "layers.0.attn.wq_b.weight": (32768, 1024),
        "layers.0.attn.wo_a.weight": (8192, 4096),
        "layers.0.attn.attn_sink": (64,),
        "layers.0.ffn.gate.tid2eid": (129280, 6),
        "layers.2.attn.compressor.wkv.weight": (1024, 4096),
        "layers.2.attn.compressor.ape": (4, 1024),
        "layers.2.attn.indexer.wq_b.weight": (8192, 1024),
        "layers.2.attn.indexer.compressor.wgate.weight": (256, 4096),
        "layers.3.attn.compressor.ape": (128, 512),
        "layers.3.ffn.gate.bias": (256,),
        "layers.3.hc_ffn_fn": (24, 16384),
        "layers.3.ffn.experts.255.w2.weight": (4096, 2048),
    }
    assert {name: tuple(views[name].shape) for name in expected} == expected
    assert views["layers.0.ffn.gate.tid2eid"].dtype == torch.int64
    assert views["layers.0.attn.attn_sink"].dtype == torch.float32


def test_what_grows_with_the_context_is_compressed() -> None:
    growing = [kv for kv in on_meta(V4_FLASH).layer_kv() if kv.window_size is None]
    assert growing.count(row_kv(512, "bfloat16", "rows", tokens_per_row=4)) == 21
    assert growing.count(row_kv(128, "bfloat16", "index keys", tokens_per_row=4)) == 21
    assert growing.count(row_kv(512, "bfloat16", "rows", tokens_per_row=128)) == 20
    # In bfloat16; the released records take about half.
    assert sum(kv.bytes_per_token for kv in growing) == 21 * (256 + 64) + 20 * 8


def test_a_kept_prefix_holds_the_raw_rows_of_a_few_tokens_only() -> None:
    """Per 128 tokens: all window rows, and the last 8 tokens of groups of 4."""
    layout = make_layout(on_meta(V4_FLASH).layer_kv(), block_size=16)
    index = PrefixIndex(layout, {})
    kept = {}
    for number, group in enumerate(layout.groups):
        blocks = range(5 * 128 // group.block_size, 6 * 128 // group.block_size)
        num_kept = sum(index.can_serve(number, block) for block in blocks)
        kept[group.window_size, group.needed_by_hits] = num_kept * group.block_size
    assert kept == {(None, True): 128, (128, True): 128, (8, True): 8, (128, False): 0}
    assert layout.hit_granularity == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compress_ratios": [0, 0, 4, 2, 4]},
            "compress_ratios[3] = 2 is not one of 0 (window only), 4 (compressed sparse attention)",
        ),
        ({"compress_ratios": [0, 4]}, "compress_ratios has 2 entries, num_hidden_layers is 5"),
        (
            {"compress_ratios": [0, 0, 4, 128, 4, 4]},
            "compress_ratios[5] = 4 is not 0: behind the 5 layers are those that predict",
        ),
        (
            {"num_hidden_layers": 4},
            "compress_ratios[4] = 4 is not 0: behind the 4 layers are those that predict",
        ),
        ({"kv_source_layer_ids": [2]}, "kv_source_layer_ids is a field of DeepSeek-V4.1"),
        ({"candidate_source_layer_id": 2}, "candidate_source_layer_id is a field of DeepSeek-V4.1"),
        ({"engram_layer_ids": [1]}, "engram_layer_ids is a field of DeepSeek-V4.1, not of V4"),
        ({"text_config": {}}, "text_config is a field of DeepSeek-V4.1, not of V4"),
        ({"o_groups": 3}, "o_groups = 3 is not a divisor of 4 heads"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim = 64 is not even and at most 32"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is not at most 8 experts"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'; only sqrtsoftplus is supported"),
        ({"sliding_window": None}, "sliding_window"),
    ],
)
def test_what_the_configuration_cannot_mean(changes: dict[str, Any], message: str) -> None:
    raw = RawConfig(tiny_config("deepseek_v4", **changes), "config.json")
    with pytest.raises(ModelLoadError) as caught:
        DeepseekV4.read_config(raw)
    assert message in str(caught.value)
