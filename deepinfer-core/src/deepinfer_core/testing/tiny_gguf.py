"""Tiny random GGUF files, written through the `gguf` library.

The weights are those of `tiny_weights`, quantised where the library can; K-quants, which it can
only read, get random blocks with scales of a sane size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, TokenType
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.testing.tiny import tiny_config, tiny_weights
from deepinfer_core.testing.tiny_tokenizer import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    END_OF_TEXT_TOKEN_ID,
    EOS_TOKEN_ID,
    MERGES,
    SPECIAL_TOKENS,
    token_list,
)
from deepinfer_core.weights.gguf_reader import EXPERT_NAMES, LAYER_NAMES, MODEL_NAMES

GGUF_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
"""Tiny family -> `general.architecture`."""

K_QUANT_SCALES: dict[GGMLQuantizationType, tuple[tuple[int, ...], float]] = {
    GGMLQuantizationType.Q2_K: ((80, 82), 12.0),
    GGMLQuantizationType.Q3_K: ((108,), 40.0),
    GGMLQuantizationType.Q4_K: ((0, 2), 300.0),
    GGMLQuantizationType.Q5_K: ((0, 2), 600.0),
    GGMLQuantizationType.Q6_K: ((208,), 1300.0),
}
"""Where a block holds its float16 scales, and how large values are at a scale of 1."""


def write_tiny_gguf(
    path: str | Path,
    family: str,
    *,
    kind: str = "F32",
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a GGUF file with tokenizer and chat template.

    Args:
        family: one of `GGUF_FAMILIES`.
        kind: type of the matrices, such as `Q8_0` or `Q4_K`; one-dimensional tensors, and rows
            that are no multiple of its block, stay F32.
        metadata: further keys, with their full names.
        overrides: configuration fields, under their Hugging Face names.

    Returns:
        the path.
    """
    path = Path(path)
    config = tiny_config(family, **overrides)
    writer = gguf.GGUFWriter(path, GGUF_FAMILIES[family])
    _add_config(writer, config)
    _add_tokenizer(writer, config["vocab_size"])
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)
    quantised = GGMLQuantizationType[kind]
    rng = np.random.default_rng(seed)
    for name, tensor in gguf_tensors(config, seed).items():
        blocks = encode(tensor.numpy(), quantised, rng)
        if blocks is None:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, blocks, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """`tiny_weights` under GGUF names: experts stacked, rotary rows of a llama interleaved."""
    part_names = {hf: own for own, hf in LAYER_NAMES.items()}
    expert_names = {hf: own for own, hf in EXPERT_NAMES.items()}
    top_names = {hf: own for own, hf in MODEL_NAMES.items()}
    tensors: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}
    for name, tensor in tiny_weights(config, seed).items():
        stem, _, suffix = name.rpartition(".")
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        if match is None:
            tensors[f"{top_names[stem]}.{suffix}"] = tensor
            continue
        layer, part = match.groups()
        if part.startswith("mlp.experts."):
            own = expert_names[part.rpartition(".")[2]]
            experts.setdefault(f"blk.{layer}.{own}.{suffix}", []).append(tensor)
            continue
        if config["model_type"] == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = "num_attention_heads" if "q_proj" in part else "num_key_value_heads"
            tensor = _interleave(tensor, config[heads])
        tensors[f"blk.{layer}.{part_names[part]}.{suffix}"] = tensor
    return tensors | {name: torch.stack(parts) for name, parts in experts.items()}


def encode(
    values: NDArray[np.float32], kind: GGMLQuantizationType, rng: np.random.Generator
) -> NDArray[Any] | None:
    """Blocks of a tensor in a type, or None if it must stay float32.

    K-quants ignore the values: their blocks are random, of the size that the fan-in asks for.
    """
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    if values.ndim == 1 or values.shape[-1] % block_elements:
        return None
    if kind not in K_QUANT_SCALES:
        blocks: NDArray[Any] = gguf.quants.quantize(values, kind)
        return blocks
    offsets, magnitude = K_QUANT_SCALES[kind]
    num_blocks = values.shape[-1] // block_elements
    blocks = rng.integers(0, 256, (*values.shape[:-1], num_blocks, block_bytes), dtype=np.uint8)
    scale = np.float16(1.0 / math.sqrt(values.shape[-1]) / magnitude)
    for offset in offsets:
        blocks[..., offset : offset + 2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return blocks.reshape(*values.shape[:-1], num_blocks * block_bytes)


def _interleave(tensor: Tensor, num_heads: int) -> Tensor:
    """Put the rotary pairs (i, i + D / 2) of each head side by side."""
    halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    tokens = token_list()
    kinds = [TokenType.CONTROL] * len(SPECIAL_TOKENS)
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    unused = vocab_size - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in range(unused)])
    writer.add_token_types(kinds + [TokenType.UNUSED] * unused)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_eot_token_id(END_OF_TEXT_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
