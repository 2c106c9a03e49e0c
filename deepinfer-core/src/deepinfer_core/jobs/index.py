"""Where each row of a batch file starts, and under which key its result is journaled.

One pass over the file, about 30 bytes of memory per row: a file of ten million rows is never
held. Knows no model and no result.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.jobs.rows import load_row, row_id_of

KEY_BYTES = 16


@dataclass(slots=True)
class RowIndex:
    """Parallel arrays, one entry for each line that is not blank."""

    offsets: array[int]
    line_numbers: array[int]
    """From 1, as an editor counts."""
    keys: bytearray
    """`KEY_BYTES` bytes for each row."""
    duplicates: dict[int, int]
    """Row -> the earlier row that has the same id."""

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, row: int) -> bytes:
        return bytes(self.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES])


def index_rows(path: Path, settings_hash: bytes) -> RowIndex:
    """Read the file once; keys cover settings, id and content of each row.

    Raises:
        ConfigError: the file cannot be read.
    """
    offsets, line_numbers, id_hashes = array("Q"), array("Q"), array("Q")
    keys = bytearray()
    for offset, line_number, line in _lines(path):
        identity = _identity(line, line_number)
        offsets.append(offset)
        line_numbers.append(line_number)
        id_hashes.append(int.from_bytes(blake2b(identity, digest_size=8).digest(), "little"))
        keys += _row_key(settings_hash, identity, line)
    index = RowIndex(offsets, line_numbers, keys, {})
    with path.open("rb") as file:
        _find_duplicates(index, file, id_hashes)
        for row in index.duplicates:
            line = read_row(file, index, row)
            identity = b"line %d" % index.line_numbers[row]
            start = row * KEY_BYTES
            index.keys[start : start + KEY_BYTES] = _row_key(settings_hash, identity, line)
    return index


def read_row(file: BinaryIO, index: RowIndex, row: int) -> bytes:
    """The bytes of one row, without its line end."""
    file.seek(index.offsets[row])
    return file.readline().strip()


def match_keys(index: RowIndex, keys: bytearray, values: array[int]) -> np.ndarray:
    """For each row the value of the last entry with its key, or -1.

    Args:
        keys: `KEY_BYTES` bytes for each entry of `values`.

    Returns:
        [num_rows] int64.
    """
    found = np.full(len(index), -1, dtype=np.int64)
    if not len(values) or not len(index):
        return found
    have = np.frombuffer(bytes(keys), dtype="<u8").reshape(-1, 2)
    want = np.frombuffer(bytes(index.keys), dtype="<u8").reshape(-1, 2)
    order = np.argsort(have[:, 0], kind="stable")
    sorted_first = have[order, 0]
    # Equal first halves with unequal second halves cost a recomputed row, never a wrong result.
    position = np.searchsorted(sorted_first, want[:, 0], side="right") - 1
    candidate = order[np.maximum(position, 0)]
    same = (position >= 0) & (have[candidate] == want).all(axis=1)
    found[same] = np.asarray(values, dtype=np.int64)[candidate[same]]
    return found


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    try:
        with path.open("rb") as file:
            offset = 0
            for line_number, raw in enumerate(file, start=1):
                line = raw.strip()
                if line:
                    yield offset, line_number, line
                offset += len(raw)
    except OSError as error:
        raise ConfigError(
            f"cannot read the batch file: {error.strerror}", field="input", value=str(path)
        ) from error


def _identity(line: bytes, line_number: int) -> bytes:
    """The id of a row; its place where it has none or cannot be read."""
    try:
        row_id = row_id_of(load_row(line))
    except RequestError:
        row_id = None
    return b"line %d" % line_number if row_id is None else json.dumps(row_id).encode()


def _row_key(settings_hash: bytes, identity: bytes, line: bytes) -> bytes:
    return blake2b(identity + b"\0" + line, digest_size=KEY_BYTES, key=settings_hash[:32]).digest()


def _find_duplicates(index: RowIndex, file: BinaryIO, id_hashes: array[int]) -> None:
    hashes = np.asarray(id_hashes, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    equal = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    for place in equal:
        row, earlier = int(order[place]), int(order[place - 1])
        # Hashes may clash; the ids themselves decide.
        ids = [_identity(read_row(file, index, r), index.line_numbers[r]) for r in (earlier, row)]
        if ids[0] == ids[1]:
            index.duplicates[row] = index.duplicates.get(earlier, earlier)
