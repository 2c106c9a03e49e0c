"""A checkpoint whose matrices are codes with scales: gives the numbers that they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from deepinfer_core.weights.source import TensorEntry, TensorSource


class Scheme(Protocol):
    """One way of storing a matrix in several tensors. Looks at names and entries only."""

    def scale_name(self, name: str, entries: Mapping[str, TensorEntry]) -> str | None:
        """Where the scales of a matrix are; None if it is not of this scheme.

        Raises:
            ModelLoadError: it is, but its scales are missing or do not fit.
        """
        ...

    def decoded(self, entry: TensorEntry) -> TensorEntry:
        """What the matrix is once decoded."""
        ...

    def read_into(self, source: TensorSource, name: str, scale_name: str, out: Tensor) -> None:
        """Decode a matrix into place, a stripe at a time."""
        ...


class QuantizedSource:
    """Decodes on the way. Implements `TensorSource`.

    Args:
        source: of the files; scales disappear from its entries.
        schemes: the first that knows a matrix decodes it.

    Raises:
        ModelLoadError: scales are missing or do not fit.
    """

    def __init__(self, source: TensorSource, schemes: Sequence[Scheme]) -> None:
        self._source = source
        self._coded: dict[str, tuple[Scheme, str]] = {}
        found = source.entries
        for name in found:
            for scheme in schemes:
                scale_name = scheme.scale_name(name, found)
                if scale_name is not None:
                    self._coded[name] = scheme, scale_name
                    break
        scales = {scale_name for _, scale_name in self._coded.values()}
        self._entries = {
            name: self._coded[name][0].decoded(entry) if name in self._coded else entry
            for name, entry in found.items()
            if name not in scales
        }

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    def read_into(self, name: str, destination: Tensor) -> None:
        if name in self._coded:
            scheme, scale_name = self._coded[name]
            scheme.read_into(self._source, name, scale_name, destination)
        else:
            self._source.read_into(name, destination)
