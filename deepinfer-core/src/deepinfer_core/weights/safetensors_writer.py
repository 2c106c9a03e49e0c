"""Writes safetensors files tensor by tensor, from chunks of bytes: no file is ever in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.weights.json_file import write_json
from deepinfer_core.weights.safetensors_reader import INDEX_NAME, SINGLE_NAME
from deepinfer_core.weights.stored import STORED_DTYPES

Progress = Callable[[str, int], None]
"""Called with (tensor name, its bytes) once a tensor is written."""


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor of a file to be, and where its data will come from."""

    name: str
    dtype: str
    """As the format spells it, such as `F8_E4M3`."""
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Tensor]]
    """Gives the data piece by piece, when it is written: contiguous tensors on the CPU."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * STORED_DTYPES[self.dtype].itemsize


def write_checkpoint(
    directory: Path, shards: Sequence[Sequence[TensorToWrite]], progress: Progress | None = None
) -> int:
    """Write shards, and an index if there are several.

    Args:
        directory: exists.
        shards: those without tensors are left out.

    Returns:
        bytes of all tensors.
    """
    shards = [shard for shard in shards if shard]
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        count = f"{number:05}-of-{len(shards):05}"
        file_name = SINGLE_NAME if len(shards) == 1 else f"model-{count}.safetensors"
        total += write_safetensors(directory / file_name, shard, progress)
        weight_map.update((tensor.name, file_name) for tensor in shard)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(directory / INDEX_NAME, index)
    return total


def write_safetensors(
    path: Path, tensors: Sequence[TensorToWrite], progress: Progress | None = None
) -> int:
    """Write one file and return the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            rest = tensor.num_bytes
            for chunk in tensor.chunks():
                rest -= file.write(chunk.flatten().view(torch.uint8).numpy().data)
            assert rest == 0, f"{tensor.name}: {rest} bytes are missing"
            if progress is not None:
                progress(tensor.name, tensor.num_bytes)
    return offset
