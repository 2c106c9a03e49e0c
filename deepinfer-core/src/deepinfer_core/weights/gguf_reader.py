"""Reads GGUF files through the `gguf` library: metadata by key, tensors decoded in row chunks.

Tensors appear under their Hugging Face names and in Hugging Face order of rows; a quantised tensor
is decoded straight into its place, so nothing is held twice. What the metadata means is in
`gguf_info.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.source import TensorEntry

CHUNK_ELEMENTS = 1 << 22
"""Decoded at once; 16 MB of float32."""

MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERT_NAMES = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies; part of the configuration rather than a weight."""


class GGUFFile:
    """An open file: its metadata and its tensors under their own names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            size = path.stat().st_size if path.exists() else 0
            raise ModelLoadError(
                f"{path} ({size:,} bytes) is truncated or not a GGUF file: {error}"
            ) from error
        self._fields: Mapping[str, Any] = reader.fields
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}

    def get(self, key: str) -> Any:
        """A metadata value as a plain Python object; None if the file lacks it."""
        field = self._fields.get(key)
        if field is None:
            return None
        is_list = field.types[0] == GGUFValueType.ARRAY
        if field.types[-1] == GGUFValueType.STRING:
            values = [bytes(field.parts[i]).decode("utf-8") for i in field.data]
        else:
            values = [item for i in field.data for item in field.parts[i].tolist()]
        return values if is_list else values[0]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of one Hugging Face tensor are in the file."""

    tensor: Any
    expert: int | None = None
    num_heads: int | None = None
    """Set where the file holds each head's rotary pairs side by side."""


class GGUFSource:
    """Tensors of a file under Hugging Face names. Implements `TensorSource`.

    Args:
        num_q_heads, num_kv_heads: of a model whose query and key rows the file permutes;
            None when it does not.

    Raises:
        ModelLoadError: a tensor's type cannot be decoded; names the tensor and the type.
    """

    def __init__(
        self, file: GGUFFile, *, num_q_heads: int | None = None, num_kv_heads: int | None = None
    ) -> None:
        self._path = file.path
        self._places: dict[str, _Place] = {}
        self._entries: dict[str, TensorEntry] = {}
        permuted = {"self_attn.q_proj": num_q_heads, "self_attn.k_proj": num_kv_heads}
        check_types(file)
        for tensor in file.tensors.values():
            if tensor.name == ROPE_FACTORS:
                continue
            shape = tuple(int(size) for size in reversed(tensor.shape))
            for name, expert in _hf_names(tensor.name, shape):
                layer_part = name.rpartition(".")[0].partition("model.layers.")[2].partition(".")[2]
                self._places[name] = _Place(tensor, expert, permuted.get(layer_part))
                own_shape = shape if expert is None else shape[1:]
                self._entries[name] = TensorEntry(own_shape, tensor.tensor_type.name)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    def read_into(self, name: str, destination: Tensor) -> None:
        place = self._places[name]
        rows = place.tensor.data if place.expert is None else place.tensor.data[place.expert]
        row_elements = destination.shape[-1]
        if destination.dim() == 1 and place.num_heads is None:
            rows, destination = rows[None], destination[None]
        elif destination.dim() == 1:
            rows, destination, row_elements = rows[:, None], destination[:, None], 1
        order = None
        if place.num_heads is not None:
            order = _rotary_row_order(destination.shape[0], place.num_heads)
        step = max(1, CHUNK_ELEMENTS // row_elements)
        for start in range(0, destination.shape[0], step):
            values = _decode(rows[start : start + step], place.tensor.tensor_type)
            if order is None:
                destination[start : start + step].copy_(values)
            else:
                index = order[start : start + step].to(destination.device)
                destination[index] = values.to(destination)


def check_types(file: GGUFFile) -> None:
    """Refuse a file with a tensor that cannot be decoded.

    Raises:
        ModelLoadError: names the first such tensor of each type, and the type.
    """
    first_of_type: dict[GGMLQuantizationType, str] = {}
    for tensor in file.tensors.values():
        first_of_type.setdefault(tensor.tensor_type, tensor.name)
    bad = [f"{name} is {kind.name}" for kind, name in first_of_type.items() if not _decodes(kind)]
    if bad:
        raise ModelLoadError(
            f"{file.path}: tensors of a type that cannot be decoded: {', '.join(bad)}; "
            "use a file with F32, F16, BF16, Q8_0, Q4_0, Q4_1 or K-quants"
        )


def _decodes(kind: GGMLQuantizationType) -> bool:
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        gguf.quants.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _decode(rows: Any, kind: GGMLQuantizationType) -> Tensor:
    values = gguf.quants.dequantize(np.asarray(rows), kind)
    # Unquantised rows come as views of the read-only mapping.
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def _hf_names(name: str, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """(Hugging Face name, expert) for a GGUF tensor; an unknown name stays as it is."""
    stem, _, kind = name.rpartition(".")
    if stem in MODEL_NAMES:
        return [(f"{MODEL_NAMES[stem]}.{kind}", None)]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None:
        return [(name, None)]
    layer, part = match.groups()
    if part in EXPERT_NAMES:
        prefix = f"model.layers.{layer}.mlp.experts"
        return [(f"{prefix}.{e}.{EXPERT_NAMES[part]}.{kind}", e) for e in range(shape[0])]
    if part in LAYER_NAMES:
        return [(f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}", None)]
    return [(name, None)]


def _rotary_row_order(num_rows: int, num_heads: int) -> Tensor:
    """Row r of the file belongs at row order[r]: pairs side by side become two halves.

    # LAYOUT: file row (head, pair, half) -> model row (head, half, pair)
    """
    rows = torch.arange(num_rows).view(num_heads, 2, -1)
    return rows.transpose(1, 2).reshape(-1)
