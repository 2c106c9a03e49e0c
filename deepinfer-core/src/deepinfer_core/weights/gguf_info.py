"""GGUF metadata -> `ModelInfo`, by way of the Hugging Face names of the same facts.

So a model class reads one kind of configuration, whatever file it came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.decoder_config import read_head_dim
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.weights.gguf_header import GGUFHeader
from deepinfer_core.weights.gguf_reader import ROPE_FACTORS, decode_rows, map_file
from deepinfer_core.weights.model_info import ModelInfo, TokenizerSource

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
}
"""`general.architecture` -> the Hugging Face architecture and model type."""

CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
}
ROPE_KEYS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_gguf_info(header: GGUFHeader, registry: ModelRegistry) -> ModelInfo:
    """Read everything but the weights.

    Raises:
        ModelLoadError: the architecture is unknown (lists the known ones), or a fact is missing.
    """
    arch = header.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelLoadError(
            f"{header.path}: GGUF architecture {arch!r} is unknown; "
            f"known: {', '.join(sorted(ARCHITECTURES))}"
        )
    architecture, model_type = ARCHITECTURES[arch]
    fields = _hf_fields(header, arch) | {"model_type": model_type, "architectures": [architecture]}
    ends = (header.metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS)
    defaults = _present(header, SAMPLING_KEYS)
    return ModelInfo(
        architecture=architecture,
        model_type=model_type,
        config=registry.resolve(architecture).read_config(RawConfig(fields, str(header.path))),
        raw_config=fields,
        eos_token_ids=tuple(sorted({end for end in ends if end is not None})),
        bos_token_id=header.metadata.get("tokenizer.ggml.bos_token_id"),
        dtype=_main_dtype(header),
        path=header.path,
        tokenizer_source=TokenizerSource("gguf", header.path),
        generation_defaults=defaults,
    )


def _hf_fields(header: GGUFHeader, arch: str) -> dict[str, Any]:
    """The file's facts under the names of a `config.json`."""
    fields = _present(header, CONFIG_KEYS, f"{arch}.")
    if arch == "llama" and fields.get("num_experts"):
        raise ModelLoadError(f"{header.path}: a llama with experts (Mixtral) is not supported")
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{header.path}: no tensor token_embd.weight")
    fields["vocab_size"] = tensors["token_embd.weight"].shape[0]
    fields["tie_word_embeddings"] = "output.weight" not in tensors
    fields["attention_bias"] = "blk.0.attn_output.bias" in tensors
    fields["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    # Without a stated size heads share the hidden size, in every architecture of this format.
    fields["head_dim"] = read_head_dim(RawConfig(fields, str(header.path)))
    if rotary_dim := header.metadata.get(f"{arch}.rope.dimension_count"):
        fields["partial_rotary_factor"] = rotary_dim / fields["head_dim"]
    fields["rope_scaling"] = _rope_scaling(header, arch)
    if arch == "qwen3moe":
        # Files that do not say were written for models that renormalise.
        fields.setdefault("norm_topk_prob", True)
        fields["mlp_only_layers"] = [
            layer
            for layer in range(RawConfig(fields, str(header.path)).size("num_hidden_layers"))
            if f"blk.{layer}.ffn_gate_inp.weight" not in tensors
        ]
    return fields


def _present(header: GGUFHeader, keys: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """The keys that the file has, under our names."""
    found = {name: header.metadata.get(prefix + key) for name, key in keys.items()}
    # Numbers were written as float32; the shortest decimal is what their author meant.
    return {
        name: float(str(np.float32(value))) if isinstance(value, float) else value
        for name, value in found.items()
        if value is not None
    }


def _rope_scaling(header: GGUFHeader, arch: str) -> dict[str, Any] | None:
    if (factors := header.tensors.get(ROPE_FACTORS)) is not None:
        row = decode_rows(map_file(header), factors, 0, 1)
        return {"rope_type": "factors", "frequency_factors": row.flatten().tolist()}
    kind = header.metadata.get(f"{arch}.rope.scaling.type")
    if kind in (None, "none"):
        return None
    return {"rope_type": kind} | _present(header, ROPE_KEYS, f"{arch}.")


def _main_dtype(header: GGUFHeader) -> str:
    """Of the type that holds most elements; a quantised one computes in bfloat16."""
    elements: dict[str, int] = {}
    for tensor in header.tensors.values():
        kind = tensor.kind.name
        elements[kind] = elements.get(kind, 0) + tensor.num_elements
    main = max(elements, key=lambda kind: elements[kind], default="")
    return FLOAT_TYPES.get(main, "bfloat16")
