"""Tiny random checkpoints with the layers of real families: a model of 100 KB that loads, talks
gibberish and can be compared with any other implementation.

Deterministic by seed. Weights are sized so that the next token depends on the whole context and
near-ties are rare.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny_tokenizer import (
    BOS_TOKEN_ID,
    END_OF_TEXT_TOKEN_ID,
    EOS_TOKEN_ID,
    write_tokenizer,
)
from deepinfer_core.testing.tiny_v41 import DEEPSEEK_V41, nested
from deepinfer_core.weights.quant.encode import encode_fp8
from deepinfer_core.weights.quant.released import ReleasedFormat
from deepinfer_core.weights.stored import holds_codes

NORM_WEIGHT = re.compile(r"norm\d?\.weight$")

_SHARED: dict[str, Any] = {
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


_FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_POWERS: dict[str, Any] = {**_FP8, "scale_fmt": "ue8m0"}
_WIDE_BLOCKS: dict[str, Any] = {"fmt": "e4m3", "weight_block_size": [128, 128]}
QUANTIZED: dict[str, dict[str, Any]] = {
    "deepseek_v4": {"expert_dtype": "fp4", "quantization_config": _POWERS | _WIDE_BLOCKS},
    "deepseek_v41": {
        "quantization_config": {
            **_POWERS,
            "weight_block_size": [32, 32],
            "expert_dtype": "fp4",
        }
    },
}
"""Family -> how its released files say that they are quantised; others say it as V3 does."""


def tiny_config(family: str, **overrides: Any) -> dict[str, Any]:
    """The `config.json` of a tiny model.

    Args:
        family: one of `TINY_FAMILIES`.
        overrides: fields to replace or add.
    """
    fields = _SHARED | TINY_FAMILIES[family] | overrides
    return nested(fields) if family == "deepseek_v41" else fields


def tiny_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors under checkpoint names, for a configuration.

    Matrices by fan-in, norms around 1, biases small. What the model wants as codes is codes.
    """
    model_class = ModelRegistry().resolve(config["architectures"][0])
    parsed = model_class.read_config(RawConfig(config, "tiny config"))
    ops = reference_table()
    with torch.device("meta"):
        model = model_class(parsed, ops, dtype="float32")
    views = checkpoint_views(model)
    first_cache = len(model.layer_kv())
    drafter = build_drafter(parsed, ops, dtype="float32", first_cache=first_cache)
    if drafter is not None:
        views |= checkpoint_views(drafter)
    weights: dict[str, Tensor] = {}
    for name, view in views.items():
        if not holds_codes(view):
            weights[name] = _random(name, tuple(view.shape), seed)
        elif name.endswith(".weight"):
            scale_name = f"{name.removesuffix('.weight')}.scale"
            grid = views[scale_name].shape
            block = (-(-view.shape[0] // grid[0]), -(-view.shape[1] // grid[1]))
            numbers = _random(name, tuple(view.shape), seed)
            weights[name], weights[scale_name] = encode_fp8(numbers, block, powers=True)
    return weights


def write_tiny_checkpoint(
    directory: str | Path,
    family: str,
    *,
    seed: int = 0,
    num_shards: int = 1,
    generation_config: Mapping[str, Any] | None = None,
    quantize: bool = False,
    **overrides: Any,
) -> Path:
    """Write a Hugging Face directory: configuration, weights, tokenizer, chat template.

    Args:
        directory: made if it does not exist.
        family: one of `TINY_FAMILIES`.
        num_shards: above 1, the weights are split and an index is written.
        generation_config: replaces the default, which stops at two tokens.
        quantize: store matrices as released files do, as FP8 and FP4 codes, the rest in bfloat16.
        overrides: configuration fields; `torch_dtype` is the dtype of the weights.

    Returns:
        the directory.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **(_quantization(family) if quantize else {}) | overrides)
    weights = tiny_weights(config, seed)
    if quantize:
        stored = ReleasedFormat.of_config(config)
        weights = dict(item for pair in weights.items() for item in stored.encode(*pair).items())
    else:
        weights = _converted(weights, getattr(torch, config["torch_dtype"]))
    _write_json(directory / "config.json", config)
    if generation_config is None:
        generation_config = {"eos_token_id": [EOS_TOKEN_ID, END_OF_TEXT_TOKEN_ID]}
    _write_json(directory / "generation_config.json", generation_config)
    _write_weights(directory, weights, num_shards)
    write_tokenizer(directory)
    return directory


def _quantization(family: str) -> dict[str, Any]:
    plain = {"quantization_config": _FP8 | _WIDE_BLOCKS}
    return {"torch_dtype": "bfloat16", **QUANTIZED.get(family, plain)}


def _converted(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor.contiguous()
        for name, tensor in weights.items()
    }


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    if name.endswith("tid2eid"):  # experts of a token, each once
        return torch.rand(shape[0], 8, generator=generator).argsort(dim=1)[:, : shape[1]]
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        tensor = 0.2 * noise + (1.0 if NORM_WEIGHT.search(name) else 0.0)
    else:
        tensor = noise / math.sqrt(shape[-1])
    # Peaked attention: without it every context looks alike and greedy output falls into loops.
    is_query_or_key = any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
    return 2.0 * tensor if is_query_or_key else tensor


def _write_weights(directory: Path, weights: dict[str, Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        own = names[shard::num_shards]
        save_file({name: weights[name] for name in own}, directory / file_name, {"format": "pt"})
        weight_map.update(dict.fromkeys(own, file_name))
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
