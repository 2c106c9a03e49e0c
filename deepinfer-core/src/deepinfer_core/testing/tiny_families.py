"""Configurations of tiny models: what each family's file says, in small numbers."""

from __future__ import annotations

from typing import Any

from deepinfer_core.testing.tiny_tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID
from deepinfer_core.testing.tiny_v41 import DEEPSEEK_V41

SHARED: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "float32",
}
_QWEN: dict[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 3,
}
_DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "head_dim": 16,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 128,
    },
}

TINY_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 24,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **_QWEN},
    "qwen2_window": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "tie_word_embeddings": True,
        **_QWEN,
        "head_dim": 32,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_QWEN,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": {
        **_DEEPSEEK_V3,
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_n_heads": 16,
        "index_head_dim": 32,
        "index_topk": 24,
    },
    "deepseek_v4": {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_hidden_layers": 5,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 24,
        "o_groups": 2,
        "o_lora_rank": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "num_hash_layers": 2,
        "swiglu_limit": 10.0,
        "sliding_window": 24,
        "compress_ratios": [0, 0, 4, 128, 4],
        "compress_rope_theta": 160000.0,
        "index_n_heads": 16,
        "index_head_dim": 32,
        "index_topk": 6,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 64,
        },
    },
    "deepseek_v41": DEEPSEEK_V41,
}
"""Family -> what its configuration adds to the shared sizes."""

TINY_DRAFTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mtp_v3": ("deepseek_v3", {"num_nextn_predict_layers": 1}),
    "mtp_v32": ("deepseek_v32", {"num_nextn_predict_layers": 1}),
    "mtp_v4": ("deepseek_v4", {"num_nextn_predict_layers": 1}),
    "dspark_v4": (
        "deepseek_v4",
        {
            "num_nextn_predict_layers": 1,
            "compress_ratios": [0, 0, 4, 128, 4, 0, 0, 0],
            "dspark_block_size": 5,
            "dspark_noise_token_id": 319,
            "dspark_target_layer_ids": [1, 3, 4],
            "dspark_markov_rank": 16,
        },
    ),
    "dspark_v41": (
        "deepseek_v41",
        {
            "num_nextn_predict_layers": 3,
            "compress_ratios": [*DEEPSEEK_V41["compress_ratios"], 0, 0, 0],
            "dspark_block_size": 5,
            "dspark_noise_token_id": 318,
            "dspark_target_layer_ids": [3, 5, 7],
            "dspark_markov_rank": 16,
            "dspark_n_routed_experts": 4,
            "dspark_num_experts_per_tok": 2,
        },
    ),
}
"""Drafter -> the family of its target, and the fields to override for checkpoints that have it."""


FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_POWERS: dict[str, Any] = {**FP8, "scale_fmt": "ue8m0"}
WIDE_BLOCKS: dict[str, Any] = {"fmt": "e4m3", "weight_block_size": [128, 128]}
QUANTIZED: dict[str, dict[str, Any]] = {
    "deepseek_v4": {"expert_dtype": "fp4", "quantization_config": _POWERS | WIDE_BLOCKS},
    "deepseek_v41": {
        "quantization_config": {
            **_POWERS,
            "weight_block_size": [32, 32],
            "expert_dtype": "fp4",
        }
    },
}
"""Family -> how its released files say that they are quantised; others say it as V3 does."""
