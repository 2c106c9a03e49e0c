"""DeepSeek-V3: what its configuration means, and what is and is not its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.models.deepseek_v3 import DeepseekV3
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import tiny_config, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file

RELEASED: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "attention_bias": False,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def released_model() -> DeepseekV3:
    config = DeepseekV3.read_config(RawConfig(RELEASED, "config.json"))
    with torch.device("meta"):
        return DeepseekV3(config, reference_table(), dtype="bfloat16")


def test_the_released_model_has_its_sizes() -> None:
    model = released_model()
    # 671 billion without the layer that predicts a second token (arXiv:2412.19437, section 4.2).
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(671.0e9, rel=1e-3)
    assert model.config.attention_scale == pytest.approx(0.135234, abs=1e-6)
    assert model.config.max_position == 163840


def test_a_token_takes_one_latent_and_one_rotated_key_per_layer() -> None:
    layout = make_layout(released_model().layer_kv(), block_size=64)
    (group,) = layout.groups
    assert (group.kind, group.bytes_per_token) == ("full", 61 * 1152)
    assert layout.page_bytes == 61 * 64 * 1152


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v3")
    path = directory / "model.safetensors"
    extra = {"model.layers.3.eh_proj.weight": torch.zeros(64, 128)}
    save_file(load_file(path) | extra, path)
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 3}, "n_group = 3 is not a divisor of 8 experts"),
        ({"topk_group": 5}, "topk_group = 5 is not at most n_group, 4"),
        ({"topk_group": 1}, "num_experts_per_tok = 4 is not at most 2, the experts of 1 groups"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'; only sigmoid is supported"),
        ({"topk_method": "greedy"}, "topk_method 'greedy'; only noaux_tc is supported"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_what_the_configuration_cannot_mean(changes: dict[str, Any], message: str) -> None:
    raw = RawConfig(tiny_config("deepseek_v3", **changes), "config.json")
    with pytest.raises(ModelLoadError) as caught:
        DeepseekV3.read_config(raw)
    assert message in str(caught.value)
