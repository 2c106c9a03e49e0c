"""The configuration of a tiny DeepSeek-V4.1, whose model is in a section of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOP_LEVEL = {
    "architectures",
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "torch_dtype",
    "image_token_id",
    "quantization_config",
    "vision_config",
}
"""Fields beside `text_config`."""

DEEPSEEK_V41: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "image_token_id": 319,
    "num_hidden_layers": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "sliding_window": 8,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1],
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
    "kv_source_layer_ids": [1, 3, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 4,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 4,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [0, 3],
    "engram_num_embeddings": [384, 552],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 50,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 243,
}
"""Its classes of tokens are those of the tiny tokenizer."""

FOUR_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2],
    "candidate_source_layer_id": 2,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [384],
}
"""To be given besides, for a model with one layer of each kind."""

TINY_VISION: dict[str, Any] = {
    "model_type": "deepseek_v41_vision",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "patch_size": 4,
    "rope_theta": 10000,
    "downsample_ratio": 3,
    "max_image_tokens": 64,
    "min_pixels": 576,
    "max_wh_ratio": None,
}
"""To be given as `vision_config`, for a tower; images are small, to be quick."""


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a V4.1 file holds them: the model's own in `text_config`."""
    top = {name: value for name, value in fields.items() if name in TOP_LEVEL}
    return {**top, "text_config": {n: v for n, v in fields.items() if n not in TOP_LEVEL}}
