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

from deepinfer_core.models.wanted import wanted_tensors
from deepinfer_core.testing.tiny_families import FP8, QUANTIZED, SHARED, TINY_FAMILIES, WIDE_BLOCKS
from deepinfer_core.testing.tiny_families import TINY_DRAFTERS as TINY_DRAFTERS
from deepinfer_core.testing.tiny_tokenizer import (
    END_OF_TEXT_TOKEN_ID,
    EOS_TOKEN_ID,
    write_tokenizer,
)
from deepinfer_core.testing.tiny_v41 import nested
from deepinfer_core.weights.quant.encode import encode_fp8
from deepinfer_core.weights.quant.released import ReleasedFormat
from deepinfer_core.weights.stored import holds_codes

NORM_WEIGHT = re.compile(r"norm\d?\.weight$")


def tiny_config(family: str, **overrides: Any) -> dict[str, Any]:
    """The `config.json` of a tiny model.

    Args:
        family: one of `TINY_FAMILIES`.
        overrides: fields to replace or add.
    """
    fields = SHARED | TINY_FAMILIES[family] | overrides
    return nested(fields) if family == "deepseek_v41" else fields


def tiny_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors under checkpoint names, for a configuration.

    Matrices by fan-in, norms around 1, biases small. What the model wants as codes is codes.
    """
    views = wanted_tensors(config)
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
    plain = {"quantization_config": FP8 | WIDE_BLOCKS}
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
