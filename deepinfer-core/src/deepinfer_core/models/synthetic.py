"""Checkpoints of true width with random weights, from a configuration alone: for benchmarks.

Names and shapes follow from the model, formats from `ReleasedFormat`; nothing is ever in memory but
some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.models.wanted import wanted_tensors
from deepinfer_core.weights.cut_config import Cut, cut_config
from deepinfer_core.weights.dummy import fill_one, generator_of
from deepinfer_core.weights.json_file import read_json, write_json
from deepinfer_core.weights.quant.released import ReleasedFormat
from deepinfer_core.weights.safetensors_writer import Progress, TensorToWrite, write_checkpoint
from deepinfer_core.weights.source import TensorEntry
from deepinfer_core.weights.stored import STORED_DTYPES
from deepinfer_core.weights.truncate import (
    Written,
    check_family,
    copy_side_files,
    describe_checkpoint,
    make_destination,
)

CHUNK_ELEMENTS = 1 << 22
SHARD_BYTES = 4 << 30


def write_synthetic_checkpoint(
    source: Path,
    destination: Path,
    make_cut: Callable[[Mapping[str, Any]], Cut],
    progress: Callable[[int], Progress] | None = None,
) -> Written:
    """Write random weights in the released formats for a `config.json`.

    Args and errors are those of `truncate_checkpoint`; a source needs no weights.
    """
    fields = read_json(source / "config.json")
    check_family(fields, str(source / "config.json"))
    kept_fields = cut_config(fields, make_cut(fields))
    entries = released_entries(kept_fields)
    tensors = plan_random(entries)
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    make_destination(destination)
    copy_side_files(source, destination)
    write_json(destination / "config.json", kept_fields)
    write_checkpoint(destination, _shards(tensors), progress(num_bytes) if progress else None)
    return describe_checkpoint(destination)


def released_entries(fields: Mapping[str, Any]) -> dict[str, TensorEntry]:
    """Every tensor of a released checkpoint with this configuration, as files would state it.

    Copies of the target's own tensors beside those of a drafter are left out.

    Raises:
        ModelLoadError: no model here has such a configuration.
    """
    stored = ReleasedFormat.of_config(fields)
    entries: dict[str, TensorEntry] = {}
    for name, view in wanted_tensors(fields).items():
        entries.update(stored.entries(name, view))
    return entries


def plan_random(entries: Mapping[str, TensorEntry]) -> list[TensorToWrite]:
    """Random contents for entries; the same for the same names, shapes and dtypes."""
    shapes = {
        name: torch.empty(entry.shape, dtype=STORED_DTYPES[entry.dtype], device="meta")
        for name, entry in entries.items()
    }
    return [
        TensorToWrite(name, entry.dtype, entry.shape, partial(_chunks, name, shapes))
        for name, entry in entries.items()
    ]


def _chunks(name: str, shapes: Mapping[str, Tensor]) -> Iterator[Tensor]:
    whole = shapes[name]
    generator = generator_of(name, torch.device("cpu"))
    step = max(1, CHUNK_ELEMENTS // max(1, whole[:1].numel()))
    for first in range(0, whole.shape[0], step):
        rows = whole[first : first + step]
        chunk = torch.empty(rows.shape, dtype=rows.dtype)
        fill_one(name, chunk, shapes, generator)
        yield chunk


def _shards(tensors: list[TensorToWrite]) -> list[list[TensorToWrite]]:
    shards: list[list[TensorToWrite]] = [[]]
    num_bytes = 0
    for tensor in tensors:
        if num_bytes + tensor.num_bytes > SHARD_BYTES and shards[-1]:
            shards.append([])
            num_bytes = 0
        shards[-1].append(tensor)
        num_bytes += tensor.num_bytes
    return shards
