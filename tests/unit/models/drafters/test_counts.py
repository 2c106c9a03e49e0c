"""How many tensors V4-Flash has with each of its drafters, scales included, and how they look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_core.models.deepseek_v4 import DeepseekV4
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.released import V4_FLASH
from deepinfer_core.weights.quant.released import ReleasedFormat
from deepinfer_core.weights.source import TensorEntry

FLASH: dict[str, Any] = V4_FLASH | {
    "num_nextn_predict_layers": 1,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}
DSPARK: dict[str, Any] = FLASH | {
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0],
    "dspark_block_size": 5,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [40, 41, 42],
    "dspark_markov_rank": 256,
}


def entries(fields: dict[str, Any]) -> dict[str, TensorEntry]:
    config = DeepseekV4.read_config(RawConfig(fields, "config.json"))
    ops, stored = reference_table(), ReleasedFormat.of_config(fields)
    with torch.device("meta"):
        target = DeepseekV4(config, ops, dtype="bfloat16")
    first_cache = len(target.layer_kv())
    drafter = build_drafter(config, ops, dtype="bfloat16", first_cache=first_cache)
    views = checkpoint_views(target) | checkpoint_views(drafter)
    return {n: e for name, view in views.items() for n, e in stored.entries(name, view).items()}


@pytest.mark.parametrize(
    ("fields", "count"),
    [(FLASH, 69_187), (DSPARK, 72_317)],  # the second is what was predicted, not a released index
    ids=["predicting layer", "dspark"],
)
def test_tensors_are_counted(fields: dict[str, Any], count: int) -> None:
    assert len(entries(fields)) == count


def test_dspark_stores_what_it_is_said_to() -> None:
    found = entries(DSPARK)
    expected = {
        "mtp.0.main_proj.weight": TensorEntry((4096, 12288), "F8_E4M3", False),
        "mtp.0.main_proj.scale": TensorEntry((32, 96), "F8_E8M0", False),
        "mtp.0.main_norm.weight": TensorEntry((4096,), "BF16"),
        "mtp.1.attn.wkv.weight": TensorEntry((512, 4096), "F8_E4M3", False),
        "mtp.1.ffn.gate.bias": TensorEntry((256,), "F32"),
        "mtp.2.ffn.experts.255.w2.weight": TensorEntry((4096, 1024), "I8", False),
        "mtp.2.norm.weight": TensorEntry((4096,), "BF16"),
        "mtp.2.markov_head.markov_w1.weight": TensorEntry((129280, 256), "BF16"),
        "mtp.2.markov_head.markov_w2.weight": TensorEntry((129280, 256), "BF16"),
        "mtp.2.confidence_head.proj.weight": TensorEntry((1, 4352), "BF16"),
        "mtp.2.hc_head_fn": TensorEntry((4, 16384), "F32"),
        "mtp.2.hc_ffn_base": TensorEntry((24,), "F32"),
    }
    assert {name: found[name] for name in expected} == expected
    assert "mtp.0.ffn.gate.tid2eid" not in found
    assert "mtp.0.e_proj.weight" not in found
