"""A GGUF file's tensors, decoded by the `gguf` library in chunks of rows.

They appear under their Hugging Face names and with the rows in Hugging Face order; a quantised
tensor is decoded straight into its place, so nothing is held twice. What the metadata means is in
`gguf_info.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.gguf_header import GGUFHeader, GGUFTensor
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one Hugging Face tensor is in the file."""

    tensor: GGUFTensor
    """Of one expert, if the file's own tensor holds all of them."""
    num_heads: int | None
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
        self,
        header: GGUFHeader,
        *,
        num_q_heads: int | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        _check_types(header)
        self._data = map_file(header)
        heads = {"attn_q": num_q_heads, "attn_k": num_kv_heads}
        self._places: dict[str, _Place] = {}
        for own_name, own_tensor in header.tensors.items():
            num_heads = heads.get(own_name.split(".")[-2] if "." in own_name else "")
            if own_name != ROPE_FACTORS:
                for name, tensor in _hf_tensors(own_name, own_tensor):
                    self._places[name] = _Place(tensor, num_heads)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return {
            name: TensorEntry(place.tensor.shape, place.tensor.kind.name)
            for name, place in self._places.items()
        }

    def read_into(self, name: str, destination: Tensor) -> None:
        place = self._places[name]
        tensor = place.tensor
        flat = destination[None] if destination.dim() == 1 else destination
        step = max(1, CHUNK_ELEMENTS // tensor.shape[-1])
        is_matrix = destination.dim() > 1
        for start in range(0, flat.shape[0], step):
            rows = decode_rows(self._data, tensor, start, min(start + step, flat.shape[0]))
            if place.num_heads is None:
                flat[start : start + step].copy_(rows)
            elif is_matrix:
                order = rotary_row_order(flat.shape[0], place.num_heads)
                index = order[start : start + step].to(flat.device)
                flat[index] = rows.to(flat)
            else:  # a bias: one row in the file, whose elements are the rows of its matrix
                order = rotary_row_order(destination.shape[0], place.num_heads)
                destination[order.to(flat.device)] = rows[0].to(flat)


def map_file(header: GGUFHeader) -> NDArray[np.uint8]:
    """The whole file as bytes, read as they are touched."""
    return np.memmap(header.path, dtype=np.uint8, mode="r")


def decode_rows(
    data: NDArray[np.uint8], tensor: GGUFTensor, first_row: int, end_row: int
) -> Tensor:
    """Rows of a tensor as [rows, row elements] float32, on the CPU.

    Args:
        data: the whole file.
    """
    begin = tensor.offset + first_row * tensor.row_bytes
    end = tensor.offset + end_row * tensor.row_bytes
    rows = data[begin:end].reshape(end_row - first_row, tensor.row_bytes)
    values = gguf.quants.dequantize(rows, tensor.kind)
    # Float32 rows come as views of the read-only mapping.
    return torch.from_numpy(np.require(values, np.float32, ["C", "W", "A"]))


def rotary_row_order(num_rows: int, num_heads: int) -> Tensor:
    """Row r of the file belongs at row order[r]: pairs side by side become two halves.

    LAYOUT: file row (head, pair, half) -> model row (head, half, pair).
    """
    rows = torch.arange(num_rows).view(num_heads, 2, -1)
    return rows.transpose(1, 2).reshape(-1)


def _check_types(header: GGUFHeader) -> None:
    first_of_type: dict[GGMLQuantizationType, str] = {}
    for name, tensor in header.tensors.items():
        first_of_type.setdefault(tensor.kind, name)
    bad = [f"{name} is {kind.name}" for kind, name in first_of_type.items() if not _decodes(kind)]
    if bad:
        raise ModelLoadError(
            f"{header.path}: tensors of a type that cannot be decoded: {', '.join(bad)}; "
            "use a file with F32, F16, BF16, Q8_0, Q4_0, Q4_1 or K-quants"
        )


def _decodes(kind: GGMLQuantizationType) -> bool:
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        gguf.quants.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _hf_tensors(name: str, tensor: GGUFTensor) -> Iterator[tuple[str, GGUFTensor]]:
    """Hugging Face names and places of a GGUF tensor; an unknown name stays as it is."""
    stem, _, kind = name.rpartition(".")
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    layer, part = match.groups() if match else ("", "")
    if part in EXPERT_NAMES:
        count, *shape = tensor.shape
        for expert in range(count):
            offset = tensor.offset + expert * (tensor.num_bytes // count)
            own_name = f"model.layers.{layer}.mlp.experts.{expert}.{EXPERT_NAMES[part]}.{kind}"
            yield own_name, GGUFTensor(tuple(shape), tensor.kind, offset)
    elif part in LAYER_NAMES:
        yield f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}", tensor
    elif stem in MODEL_NAMES:
        yield f"{MODEL_NAMES[stem]}.{kind}", tensor
    else:
        yield name, tensor
