"""`open_checkpoint`: a directory, a GGUF file or a hub id -> facts and a source of tensors.

Opening reads headers only. Knows formats, not models: the model class reads its configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.weights.gguf_header import read_gguf_header
from deepinfer_core.weights.gguf_info import read_gguf_info
from deepinfer_core.weights.gguf_reader import GGUFSource
from deepinfer_core.weights.hf_checkpoint import read_hf_info
from deepinfer_core.weights.hub import download_checkpoint, is_hub_id
from deepinfer_core.weights.model_info import ModelInfo
from deepinfer_core.weights.quant.schemes import decode
from deepinfer_core.weights.safetensors_reader import SafetensorsSource
from deepinfer_core.weights.source import TensorSource

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint."""

    info: ModelInfo
    source: TensorSource | None
    """None: random weights (`load_format="dummy"`)."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Read tensor after tensor under Hugging Face names, in the checkpoint's own dtype.

        Nothing when the weights are random. Each tensor is a fresh copy on the CPU; integers are
        int64.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        if self.source is None:
            return
        for name, entry in self.source.entries.items():
            name_of_dtype = self.info.dtype if entry.is_loadable else "int64"
            tensor = torch.empty(entry.shape, dtype=getattr(torch, name_of_dtype))
            self.source.read_into(name, tensor)
            yield name, tensor


def open_checkpoint(
    path: str | Path,
    *,
    load_format: LoadFormat = "auto",
    revision: str | None = None,
    registry: ModelRegistry | None = None,
) -> Checkpoint:
    """Open a checkpoint and read its facts. Weights are not read; a hub id is downloaded.

    Args:
        path: a Hugging Face directory, a GGUF file, or a hub id `owner/name`.
        load_format: `auto` goes by what is there; `dummy` needs no weights.
        revision: of a hub id.
        registry: with the models of plugins; default: the built-in ones.

    Raises:
        ModelLoadError: nothing is there, it is of another format, it is corrupt, or its
            architecture is unknown.
    """
    registry = registry or ModelRegistry()
    local = Path(path)
    if not local.exists():
        if not is_hub_id(str(path)):
            raise ModelLoadError(f"{path}: no such file or directory, and no hub id (owner/name)")
        local = download_checkpoint(str(path), revision, with_weights=load_format != "dummy")
    if local.is_dir():
        if load_format == "gguf":
            raise ModelLoadError(f"{local} is a directory; load_format gguf wants a file")
        info = read_hf_info(local, registry)
        if load_format == "dummy":
            return Checkpoint(info, None)
        return Checkpoint(info, decode(SafetensorsSource(local), info.fp8_block_size))
    if load_format == "safetensors":
        raise ModelLoadError(f"{local} is a file; load_format safetensors wants a directory")
    return _open_gguf(local, registry, is_dummy=load_format == "dummy")


def _open_gguf(path: Path, registry: ModelRegistry, *, is_dummy: bool) -> Checkpoint:
    header = read_gguf_header(path)
    info = read_gguf_info(header, registry)
    if is_dummy:
        return Checkpoint(info, None)
    if info.model_type != "llama":
        return Checkpoint(info, GGUFSource(header))
    # Only this architecture's files interleave the rotary pairs of each head.
    config = info.config
    source = GGUFSource(header, num_q_heads=config.num_q_heads, num_kv_heads=config.num_kv_heads)
    return Checkpoint(info, source)
