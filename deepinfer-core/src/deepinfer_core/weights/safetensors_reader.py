"""Reads one or many safetensors files of a directory, memory-mapped, tensor by tensor.

The headers are checked against the sizes of the files before anything is mapped, so that a
truncated download is an error that says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.json_file import read_json
from deepinfer_core.weights.source import TensorEntry

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


class SafetensorsSource:
    """All tensors of a directory. Implements `TensorSource`.

    Raises:
        ModelLoadError: no weights, a shard that is not there, a truncated or corrupt file; names
            the file and, where sizes disagree, both.
    """

    def __init__(self, directory: Path) -> None:
        self._entries: dict[str, TensorEntry] = {}
        self._files: dict[str, Path] = {}
        for path in _weight_files(directory):
            for name, entry in _read_header(path).items():
                if name in self._files:
                    raise ModelLoadError(f"{name} is in both {self._files[name]} and {path}")
                self._entries[name] = entry
                self._files[name] = path
        self._open_path: Path | None = None
        self._open_file: Any = None

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    def read_into(self, name: str, destination: Tensor) -> None:
        path = self._files[name]
        try:
            # One file is mapped at a time: entries are ordered by file.
            if path != self._open_path:
                self._open_file = safe_open(path, framework="pt", device="cpu")
                self._open_path = path
            tensor = self._open_file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path}: cannot read {name}: {error}") from error
        destination.copy_(tensor)


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


def _read_header(path: Path) -> dict[str, TensorEntry]:
    """Names, shapes and dtypes of a file whose size agrees with its header."""
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
        entries = {
            name: TensorEntry(
                tuple(fields["shape"]), fields["dtype"], fields["dtype"] in FLOAT_DTYPES
            )
            for name, fields in sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        }
        ends = (fields["data_offsets"][1] for fields in header.values())
        data_bytes = max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{path}: the header is corrupt: {error!r}") from error
    if 8 + header_bytes + data_bytes != file_bytes:
        raise ModelLoadError(
            f"{path}: the file has {file_bytes:,} bytes but its header describes "
            f"{8 + header_bytes + data_bytes:,}; download it again"
        )
    return entries
