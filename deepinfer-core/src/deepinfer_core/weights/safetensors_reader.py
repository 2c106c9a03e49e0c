"""Reads one or many safetensors files of a directory, tensor by tensor, each byte once.

The headers are checked against the sizes of the files and of the tensors before anything is read,
so that a truncated download is an error that says so, and no tensor holds bytes of another. Files
are read rather than mapped: mapped pages would count as the process's own memory beside the tensors
that they are copied to.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.json_file import read_json
from deepinfer_core.weights.source import TensorEntry
from deepinfer_core.weights.stored import STORED_DTYPES, copy_stored, holds_codes

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
CHUNK_BYTES = 1 << 22
"""Read at once where a tensor is converted on its way."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a header describes it."""

    path: Path
    offset: int
    """Bytes from the beginning of the file."""
    entry: TensorEntry

    @property
    def row_bytes(self) -> int:
        """Of everything under one index of the first axis; of the whole if there is no axis."""
        return math.prod(self.entry.shape[1:]) * STORED_DTYPES[self.entry.dtype].itemsize

    @property
    def num_rows(self) -> int:
        return self.entry.shape[0] if self.entry.shape else 1


class SafetensorsSource:
    """All tensors of a directory. Implements `RowSource`.

    Raises:
        ModelLoadError: no weights, a shard that is not there, a truncated or corrupt file; names
            the file and, where sizes disagree, both.
    """

    def __init__(self, directory: Path) -> None:
        self._places: dict[str, StoredTensor] = {}
        for path in _weight_files(directory):
            for name, place in read_safetensors_header(path).items():
                if name in self._places:
                    raise ModelLoadError(f"{name} is in both {self._places[name].path} and {path}")
                self._places[name] = place
        self._entries = {name: place.entry for name, place in self._places.items()}

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    @property
    def places(self) -> Mapping[str, StoredTensor]:
        """Where each tensor lies, in the order of files and of bytes."""
        return self._places

    def read_into(self, name: str, destination: Tensor) -> None:
        self.read_rows(name, 0, destination)

    def read_rows(self, name: str, first_row: int, destination: Tensor) -> None:
        place = self._places[name]
        offset = place.offset + first_row * place.row_bytes
        flat = destination if destination.dim() else destination[None]
        dtype = STORED_DTYPES[place.entry.dtype]
        try:
            with place.path.open("rb", buffering=0) as file:
                if _takes_bytes(flat, dtype):
                    _fill(file, flat, offset)
                    return
                step = max(1, CHUNK_BYTES // max(1, place.row_bytes))
                for start in range(0, flat.shape[0], step):
                    rows = flat[start : start + step]
                    stored = torch.empty(rows.shape, dtype=dtype)
                    _fill(file, stored, offset + start * place.row_bytes)
                    copy_stored(stored, rows)
        except OSError as error:
            raise ModelLoadError(f"{place.path}: cannot read {name}: {error}") from error


def _fill(file: FileIO, tensor: Tensor, offset: int) -> None:
    """Read as many bytes as a contiguous tensor on the CPU has."""
    rest = tensor.flatten().view(torch.uint8).numpy().data
    while rest:
        num_read = os.preadv(file.fileno(), [rest], offset)
        if not num_read:
            raise OSError(f"the file ends {len(rest):,} bytes too early")
        rest, offset = rest[num_read:], offset + num_read


def _takes_bytes(destination: Tensor, dtype: torch.dtype) -> bool:
    """Whether a destination holds just what the file does, so that nothing is between them."""
    is_same = destination.dtype == dtype or holds_codes(destination)
    return is_same and destination.device.type == "cpu" and destination.is_contiguous()


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX_NAME
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelLoadError(f"{index}: weight_map is missing")
        paths = [directory / name for name in sorted(set(weight_map.values()))]
    else:
        paths = [directory / SINGLE_NAME]
    absent = [path.name for path in paths if not path.exists()]
    if absent:
        hint = f"{index.name} names them" if index.exists() else "other formats are not read"
        raise ModelLoadError(f"{directory}: no {', '.join(absent)}; {hint}")
    return paths


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file whose size agrees with its header, in the order of their bytes.

    Raises:
        ModelLoadError: the file is truncated or corrupt, or has a stored type that is unknown.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or 8 + header_bytes > file_bytes or header_bytes > MAX_HEADER_BYTES:
            raise ModelLoadError(
                f"{path}: the file has {file_bytes:,} bytes, too few for its header of "
                f"{header_bytes:,} bytes; it is truncated or no safetensors file"
            )
        header_text = file.read(header_bytes)
    try:
        header = json.loads(header_text)
        header.pop("__metadata__", None)
        places = {
            name: StoredTensor(
                path, 8 + header_bytes + fields["data_offsets"][0], _read_entry(path, name, fields)
            )
            for name, fields in sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        }
        data_bytes = 0
        for name, place in places.items():
            data_bytes = _check_place(name, place, header[name]["data_offsets"], data_bytes)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{path}: the header is corrupt: {error!r}") from error
    if 8 + header_bytes + data_bytes != file_bytes:
        raise ModelLoadError(
            f"{path}: the file has {file_bytes:,} bytes but its header describes "
            f"{8 + header_bytes + data_bytes:,}; download it again"
        )
    return places


def _check_place(name: str, place: StoredTensor, offsets: list[int], expected: int) -> int:
    """Where the next tensor must begin; what lies in a file lies end to end."""
    begin, end = offsets
    if begin != expected:
        raise ModelLoadError(
            f"{place.path}: {name} begins at byte {begin:,}, allowed is {expected:,}; "
            "the file is corrupt"
        )
    entry, num_bytes = place.entry, place.num_rows * place.row_bytes
    if end - begin != num_bytes:
        raise ModelLoadError(
            f"{place.path}: {name} has the shape {list(entry.shape)} of {entry.dtype}, "
            f"{num_bytes:,} bytes, but {begin:,} to {end:,} in the file, which is corrupt"
        )
    return end


def _read_entry(path: Path, name: str, fields: Mapping[str, Any]) -> TensorEntry:
    dtype = fields["dtype"]
    if dtype not in STORED_DTYPES:
        raise ModelLoadError(
            f"{path}: {name} is stored as {dtype}; known: {', '.join(STORED_DTYPES)}"
        )
    shape = tuple(fields["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    return TensorEntry(shape, dtype, dtype in FLOAT_DTYPES)
