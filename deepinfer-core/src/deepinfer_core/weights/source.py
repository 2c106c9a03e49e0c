"""`TensorSource`: how weight readers are seen by the loader. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What a file says of one tensor before it is read."""

    shape: tuple[int, ...]
    dtype: str
    """As the format spells it, such as `BF16` or `Q4_1`."""
    is_loadable: bool = True
    """Whether the stored type can become floating point numbers."""


class TensorSource(Protocol):
    """A checkpoint's tensors under their Hugging Face names."""

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Every tensor, in the order in which reading is cheapest."""
        ...

    def read_into(self, name: str, destination: Tensor) -> None:
        """Copy one tensor into place, converted to the destination's dtype and device.

        Args:
            destination: of the entry's shape; may be a view. One that holds codes (see
                `stored.py`) gets the bytes of the file.

        Raises:
            ModelLoadError: the file cannot be read or decoded; names file and tensor.
        """
        ...


@runtime_checkable
class RowSource(TensorSource, Protocol):
    """A source that can read a part of a tensor."""

    def read_rows(self, name: str, first_row: int, destination: Tensor) -> None:
        """As `read_into`, but only as many rows as the destination has, from `first_row` on."""
        ...
