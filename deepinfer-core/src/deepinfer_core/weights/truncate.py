"""Writes the first layers and experts of a checkpoint as a checkpoint of its own.

Stored bytes are copied as they are, shard by shard, so that codes stay codes and no tensor is ever
whole in memory. Knows tensors by the names that released checkpoints give them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import ConfigError, ModelLoadError
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.weights.cut_config import EXPERT_COUNTS, Cut, cut_config, text_fields
from deepinfer_core.weights.json_file import read_json, write_json
from deepinfer_core.weights.safetensors_reader import (
    INDEX_NAME,
    SafetensorsSource,
    StoredTensor,
)
from deepinfer_core.weights.safetensors_writer import Progress, TensorToWrite, write_checkpoint
from deepinfer_core.weights.source import RowSource
from deepinfer_core.weights.stored import STORED_DTYPES

LAYER = re.compile(r"^((?:model\.)?layers\.)(\d+)(\..+)$")
PREDICTOR = re.compile(r"^mtp\.\d+\.")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
ROUTER = re.compile(r"\.gate\.(weight|bias|bias_vl|e_score_correction_bias)$")
HASH_TABLE = re.compile(r"\.gate\.tid2eid$")
ENGRAM = re.compile(r"\.engram\.")
CHUNK_BYTES = 1 << 24
"""Copied at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a conversion wrote."""

    path: str
    num_tensors: int
    num_bytes: int
    """Of the tensors."""
    num_layers: int
    num_experts: int | None
    """None: the model has none."""


def truncate_checkpoint(
    source: Path,
    destination: Path,
    make_cut: Callable[[Mapping[str, Any]], Cut],
    progress: Callable[[int], Progress] | None = None,
) -> Written:
    """Write what a cut leaves of a checkpoint.

    Args:
        source: a Hugging Face directory with safetensors.
        destination: made; must not hold anything.
        make_cut: `plan_cut` for a configuration.
        progress: told the number of bytes to write, gives what is called for each tensor.

    Raises:
        ConfigError: the cut cannot be made, or there is something at the destination.
        ModelLoadError: the source cannot be read, or what stays is no model of its family.
    """
    if not source.is_dir():
        raise ModelLoadError(f"{source} is no directory with config.json and safetensors files")
    fields = read_json(source / "config.json")
    check_family(fields, str(source / "config.json"))
    cut = make_cut(fields)
    kept_fields = cut_config(fields, cut)
    check_family(kept_fields, f"{source / 'config.json'}, cut")
    shards = plan_shards(SafetensorsSource(source), cut)
    num_bytes = sum(tensor.num_bytes for shard in shards for tensor in shard)
    make_destination(destination)
    copy_side_files(source, destination)
    write_json(destination / "config.json", kept_fields)
    write_checkpoint(destination, shards, progress(num_bytes) if progress else None)
    return describe_checkpoint(destination)


def plan_shards(source: SafetensorsSource, cut: Cut) -> list[list[TensorToWrite]]:
    """The tensors that stay, one list for each file of the source.

    Raises:
        ModelLoadError: a router is stored as codes, which cannot be cut.
    """
    shards: dict[Path, list[TensorToWrite]] = {}
    for name, place in source.places.items():
        kept = kept_name(name, cut)
        if kept is not None:
            tensor = _plan_tensor(source, name, kept, place, cut)
            shards.setdefault(place.path, []).append(tensor)
    return list(shards.values())


def kept_name(name: str, cut: Cut) -> str | None:
    """What a tensor is called afterwards; None: it goes."""
    expert = EXPERT.search(name)
    if expert and cut.num_experts is not None and int(expert[1]) >= cut.num_experts:
        return None
    if PREDICTOR.match(name):
        return name if cut.keeps_predictors else None
    match = LAYER.match(name)
    if match is None:
        return name
    layer = cut.layer(int(match[2]))
    if layer is None or (ENGRAM.search(name) and not cut.keeps_engrams):
        return None
    return f"{match[1]}{layer}{match[3]}"


def _plan_tensor(
    source: RowSource, name: str, kept: str, place: StoredTensor, cut: Cut
) -> TensorToWrite:
    entry, count = place.entry, cut.num_experts
    if count is None:
        return TensorToWrite(kept, entry.dtype, entry.shape, partial(_rows, source, name, place))
    if HASH_TABLE.search(name):
        width = min(entry.shape[1], count)
        chunks = partial(_reassigned, source, name, place, count)
        return TensorToWrite(kept, entry.dtype, (entry.shape[0], width), chunks)
    if ROUTER.search(name):
        if not entry.is_loadable:
            raise ModelLoadError(f"{place.path}: {name} is stored as {entry.dtype}; cannot cut it")
        num_rows = min(count, place.num_rows)
        chunks = partial(_rows, source, name, place, num_rows)
        return TensorToWrite(kept, entry.dtype, (num_rows, *entry.shape[1:]), chunks)
    return TensorToWrite(kept, entry.dtype, entry.shape, partial(_rows, source, name, place))


def _rows(
    source: RowSource, name: str, place: StoredTensor, num_rows: int | None = None
) -> Iterator[Tensor]:
    shape = place.entry.shape or (1,)
    end = shape[0] if num_rows is None else num_rows
    step = max(1, CHUNK_BYTES // max(1, place.row_bytes))
    for first in range(0, end, step):
        size = (min(step, end - first), *shape[1:])
        chunk = torch.empty(size, dtype=STORED_DTYPES[place.entry.dtype])
        source.read_rows(name, first, chunk)
        yield chunk


def _reassigned(
    source: RowSource, name: str, place: StoredTensor, num_experts: int
) -> Iterator[Tensor]:
    for chunk in _rows(source, name, place):
        yield reassign_experts(chunk, num_experts)


def reassign_experts(ids: Tensor, num_experts: int) -> Tensor:
    """Each token's experts [V, K] among the first ones: [V, min(K, num_experts)], all different.

    An expert that stays keeps its tokens where it can; others are numbered modulo the experts.
    """
    width = min(ids.shape[1], num_experts)
    columns: list[Tensor] = []
    for column in ids[:, :width].unbind(dim=1):
        free = column % num_experts
        for _ in range(len(columns)):  # each step leaves at least one taken expert behind
            taken = torch.stack([free == other for other in columns]).any(dim=0)
            free = torch.where(taken, (free + 1) % num_experts, free)
        columns.append(free)
    return torch.stack(columns, dim=1)


def check_family(fields: Mapping[str, Any], source: str) -> None:
    """Whether a model here has such a configuration.

    Raises:
        ModelLoadError: none has; names the field.
    """
    raw = RawConfig(fields, source)
    architectures = raw.optional_list("architectures", str)
    if not architectures:
        raise ModelLoadError(f"{source}: architectures is missing")
    ModelRegistry().resolve(architectures[0]).read_config(raw)


def make_destination(directory: Path) -> None:
    """Make a directory.

    Raises:
        ConfigError: something is there already, or nothing can be there.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            "nothing is overwritten", field="DST", value=str(directory), allowed="an empty place"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"it cannot be made: {error.strerror}",
            field="DST",
            value=str(directory),
            allowed="a directory that you may make",
        ) from error


def copy_side_files(source: Path, destination: Path) -> None:
    """Copy tokenizer, chat template and generation settings."""
    for path in sorted(source.iterdir()):
        is_text = path.suffix in (".json", ".jinja", ".txt", ".model")
        if path.is_file() and is_text and path.name not in ("config.json", INDEX_NAME):
            shutil.copyfile(path, destination / path.name)


def describe_checkpoint(directory: Path) -> Written:
    """The summary of a checkpoint."""
    text = text_fields(read_json(directory / "config.json"))
    places = SafetensorsSource(directory).places.values()
    num_bytes = sum(place.num_rows * place.row_bytes for place in places)
    experts = next((text[name] for name in EXPERT_COUNTS if name in text), None)
    return Written(str(directory), len(places), num_bytes, text["num_hidden_layers"], experts)
