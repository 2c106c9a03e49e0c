"""Key-value metadata of a GGUF file, read in one pass. Knows no tensor and no tokenizer.

The `gguf` library makes an array object of every string, which takes seconds for the hundreds of
thousands of a vocabulary; this reads the same in a tenth of that and is otherwise not needed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ModelLoadError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF value type -> struct code."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


def read_gguf_metadata(path: str | Path) -> dict[str, Any]:
    """Read all key-value pairs: numbers, bools, strings, and lists of them.

    Raises:
        ModelLoadError: this is no GGUF file of a known version, or it is cut off.
    """
    path = Path(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Reader(view, path).read()
    except (OSError, ValueError) as error:  # ValueError: mmap refuses an empty file
        raise ModelLoadError(f"{path} cannot be read as GGUF ({error})") from error
    except struct.error as error:
        raise ModelLoadError(f"{path} is cut off within its metadata: fetch it again") from error


class _Reader:
    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view, self._path = view, path
        self._offset = 0

    def read(self) -> dict[str, Any]:
        if self._view[:4] != b"GGUF":
            raise ModelLoadError(f"{self._path} is no GGUF file: it begins {self._view[:4]!r}")
        self._offset = 4
        (version,) = self._take("I")
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"{self._path} is GGUF version {version}, supported are {_VERSIONS} in "
                "little-endian order"
            )
        _, num_pairs = self._take("QQ")
        return {self._string(): self._value(*self._take("I")) for _ in range(num_pairs)}

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
        if value_type == _STRING:
            return self._string()
        if value_type == _ARRAY:
            item_type, count = self._take("IQ")
            if count > len(self._view) - self._offset:
                raise struct.error("an array reaches past the end")
            if item_type in _SCALARS:
                return list(self._take(f"{count}{_SCALARS[item_type]}"))
            return [self._value(item_type) for _ in range(count)]
        if value_type not in _SCALARS:
            raise ModelLoadError(f"{self._path} holds a value of unknown type {value_type}")
        return self._take(_SCALARS[value_type])[0]
