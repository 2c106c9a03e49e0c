"""Record formats: rows of a cache as bytes, with small codes and the scales they share.

Names are the bytes of a record at the released widths. No torch here; `ops.reference.records`
encodes and decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_SCALE_BYTES = {"float32": 4, "ue8m0": 1, "e4m3": 1}


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How a row becomes bytes, whatever its width.

    LAYOUT: codes in order of dims (of two `e2m1` in a byte the first is the low half), then
    scales, or with `tail_first` the tail before them. Scales lie in each row, not apart in a page.
    """

    codes: Literal["e4m3", "e2m1"]
    scales: Literal["float32", "ue8m0", "e4m3"]
    """ue8m0: powers of two, as the exponent plus 127."""
    group: int
    """Consecutive dims that share a scale."""
    keeps_tail: bool = False
    """The dims that rotate, which are the last, stay bfloat16."""
    tail_first: bool = False
    scale_alignment: int = 1
    """The scales take a multiple of so many bytes."""


RECORD_FORMATS: dict[str, RecordFormat] = {
    "656": RecordFormat("e4m3", "float32", 128, keeps_tail=True),
    "584": RecordFormat("e4m3", "ue8m0", 64, keeps_tail=True, tail_first=True, scale_alignment=8),
    "528": RecordFormat("e4m3", "ue8m0", 32),
    "288": RecordFormat("e2m1", "e4m3", 16),
    "132": RecordFormat("e4m3", "float32", 128),
    "68": RecordFormat("e2m1", "ue8m0", 32),
}
"""656 of DeepSeek-V3.2, 584 of V4, 528 and 288 of V4.1; 132 and 68 of indexers' keys."""


@dataclass(frozen=True, slots=True)
class Record:
    """A format at the width of one cache. Narrow rows have fewer and smaller groups of dims."""

    name: str
    width: int
    """Dims of a row."""
    tail: int = 0
    """How many of them, the last, stay bfloat16."""
    is_turned: bool = False
    """Rows are multiplied by a Hadamard matrix first, which spreads outliers over all dims; so
    must be what they are compared with."""

    @property
    def format(self) -> RecordFormat:
        return RECORD_FORMATS[self.name]

    @property
    def num_coded(self) -> int:
        """Dims that become codes."""
        return self.width - self.tail

    @property
    def group(self) -> int:
        """Dims that share a scale: of the last group there may be fewer."""
        return max(1, min(self.format.group, self.num_coded))

    @property
    def num_scales(self) -> int:
        return -(-self.num_coded // self.group)

    @property
    def code_bytes(self) -> int:
        return self.num_coded if self.format.codes == "e4m3" else -(-self.num_coded // 2)

    @property
    def scale_bytes(self) -> int:
        """Of all scales, without what fills up."""
        return self.num_scales * _SCALE_BYTES[self.format.scales]

    @property
    def tail_offset(self) -> int:
        """Byte where the tail begins."""
        return self.code_bytes + (0 if self.format.tail_first else self._scale_room)

    @property
    def scale_offset(self) -> int:
        """Byte where the scales begin."""
        return self.code_bytes + (2 * self.tail if self.format.tail_first else 0)

    @property
    def num_bytes(self) -> int:
        return self.code_bytes + self._scale_room + 2 * self.tail

    @property
    def _scale_room(self) -> int:
        alignment = self.format.scale_alignment
        return -(-self.scale_bytes // alignment) * alignment


def make_record(name: str, width: int, rope_dim: int = 0, *, is_turned: bool = False) -> Record:
    """A record for rows of `width` dims, the last `rope_dim` of which rotate."""
    tail = rope_dim if RECORD_FORMATS[name].keeps_tail else 0
    return Record(name, width, tail, is_turned)
