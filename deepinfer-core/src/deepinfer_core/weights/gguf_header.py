"""Everything of a GGUF file before its data: metadata, and where each tensor lies.

The `gguf` library knows the types and decodes them; its reader makes an array object of every
string, which takes seconds for the hundreds of thousands of a vocabulary, and says neither which
tensor is of an unknown type nor how many bytes are lacking. Hence this one. Torch-free.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from deepinfer_core.errors import ModelLoadError

VERSIONS = (2, 3)
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
"""Value type -> struct code."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as the header describes it."""

    shape: tuple[int, ...]
    """Outermost first, as in torch."""
    kind: GGMLQuantizationType
    offset: int
    """Bytes from the beginning of the file."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Of one run along the innermost axis."""
        block_elements, block_bytes = GGML_QUANT_SIZES[self.kind]
        return int(self.shape[-1] // block_elements * block_bytes)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A file's metadata and tensors."""

    path: Path
    metadata: Mapping[str, Any]
    """Numbers, bools, strings, and lists of them."""
    tensors: Mapping[str, GGUFTensor]
    """Under the file's own names, in the order of their data."""


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read everything but the data.

    Raises:
        ModelLoadError: this is no GGUF file of a known version, it is cut off (both sizes), or
            a tensor has a type that does not exist (names it).
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _HeaderReader(view, path).read()
    except (OSError, ValueError) as error:  # ValueError: mmap refuses an empty file
        raise ModelLoadError(f"{path} cannot be read as GGUF: {error}") from error
    except struct.error as error:
        raise ModelLoadError(
            f"{path}: the file ends after {path.stat().st_size:,} bytes, within its header; "
            "download it again"
        ) from error


class _HeaderReader:
    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view, self._path = view, path
        self._offset = 0

    def read(self) -> GGUFHeader:
        if self._view[:4] != b"GGUF":
            raise ModelLoadError(f"{self._path} is no GGUF file: it begins {self._view[:4]!r}")
        self._offset = 4
        version, num_tensors, num_pairs = self._take("IQQ")
        if version not in VERSIONS:
            raise ModelLoadError(
                f"{self._path} is GGUF version {version}; versions "
                f"{', '.join(map(str, VERSIONS))} in little-endian order can be read"
            )
        metadata = {self._string(): self._value(*self._take("I")) for _ in range(num_pairs)}
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        data_start = -(-self._offset // alignment) * alignment
        tensors = {
            name: GGUFTensor(shape, kind, data_start + offset)
            for name, shape, kind, offset in sorted(described, key=lambda tensor: tensor[3])
        }
        end = max((tensor.offset + tensor.num_bytes for tensor in tensors.values()), default=0)
        if end > len(self._view):
            raise ModelLoadError(
                f"{self._path}: the file has {len(self._view):,} bytes but its header describes "
                f"{end:,}; download it again"
            )
        return GGUFHeader(self._path, metadata, tensors)

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        (num_dims,) = self._take("I")
        shape = tuple(reversed(self._take(f"{num_dims}Q")))
        kind_number, offset = self._take("IQ")
        try:
            kind = GGMLQuantizationType(kind_number)
        except ValueError:
            raise ModelLoadError(
                f"{self._path}: tensor {name} is of type {kind_number}, which is unknown; "
                "use another file, or a newer `gguf` package"
            ) from None
        if not shape or shape[-1] % GGML_QUANT_SIZES[kind][0]:
            raise ModelLoadError(f"{self._path}: tensor {name} of {kind.name} has shape {shape}")
        return name, shape, kind, offset

    def _take(self, codes: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + codes, self._view, self._offset)
        self._offset += struct.calcsize("<" + codes)
        return values

    def _string(self) -> str:
        (length,) = self._take("Q")
        start = self._offset
        if length > len(self._view) - start:
            raise struct.error("a string reaches past the end")
        self._offset = start + length
        return self._view[start : self._offset].decode("utf-8", errors="replace")

    def _value(self, value_type: int) -> Any:
        if value_type == GGUFValueType.STRING:
            return self._string()
        if value_type == GGUFValueType.ARRAY:
            item_type, count = self._take("IQ")
            if count > len(self._view) - self._offset:
                raise struct.error("an array reaches past the end")
            if item_type in _SCALARS:
                return list(self._take(f"{count}{_SCALARS[item_type]}"))
            return [self._value(item_type) for _ in range(count)]
        if value_type not in _SCALARS:
            raise ModelLoadError(
                f"{self._path}: a metadata value has the unknown type {value_type}"
            )
        return self._take(_SCALARS[value_type])[0]
