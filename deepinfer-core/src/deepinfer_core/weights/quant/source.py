"""A checkpoint whose matrices are codes with scales: gives the numbers that they mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from deepinfer_core.weights.source import RowSource, TensorEntry


class Scheme(Protocol):
    """One way of storing a matrix in several tensors. Looks at names and entries only."""

    def scale_name(self, name: str, entries: Mapping[str, TensorEntry]) -> str | None:
        """Where the scales of a matrix are; None if it is not of this scheme.

        Raises:
            ModelLoadError: it is, but its scales are missing or do not fit.
        """
        ...

    @property
    def kept_as(self) -> str | None:
        """The scheme of `gemm.coded` under which matrices can stay codes; None if there is none."""
        ...

    def decoded(self, entry: TensorEntry) -> TensorEntry:
        """What the matrix is once decoded."""
        ...

    def read_rows(
        self, source: RowSource, name: str, scale_name: str, first_row: int, out: Tensor
    ) -> None:
        """Decode rows of a matrix into place, a stripe at a time."""
        ...


class QuantizedSource:
    """Decodes on the way. Implements `RowSource`.

    Args:
        source: of the files; scales disappear from its entries.
        schemes: the first that knows a matrix decodes it.
        kept: names of matrices that stay codes; their scales appear as `x.scale`.

    Raises:
        ModelLoadError: scales are missing or do not fit.
    """

    def __init__(
        self, source: RowSource, schemes: Sequence[Scheme], kept: Collection[str] = ()
    ) -> None:
        self._source, self._schemes = source, schemes
        self._coded: dict[str, tuple[Scheme, str]] = {}
        self._kept_scales: dict[str, str] = {}
        found = source.entries
        scales: set[str] = set()
        for name in found:
            for scheme in schemes:
                scale_name = scheme.scale_name(name, found)
                if scale_name is None:
                    continue
                scales.add(scale_name)
                if name in kept:
                    self._kept_scales[kept_scale_name(name)] = scale_name
                else:
                    self._coded[name] = scheme, scale_name
                break
        self._entries = {
            name: self._coded[name][0].decoded(entry) if name in self._coded else entry
            for name, entry in found.items()
            if name not in scales
        }
        for name, scale_name in self._kept_scales.items():
            self._entries[name] = replace(found[scale_name], is_loadable=True)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        return self._entries

    def kept_as(self, name: str) -> str | None:
        """The scheme of `gemm.coded` under which a matrix can stay codes; None if there is none."""
        if name not in self._coded:
            return None
        return self._coded[name][0].kept_as

    def keep(self, names: Collection[str]) -> QuantizedSource:
        """The same source with these matrices left as codes beside their scales."""
        return QuantizedSource(self._source, self._schemes, names)

    def read_into(self, name: str, destination: Tensor) -> None:
        self.read_rows(name, 0, destination)

    def read_rows(self, name: str, first_row: int, destination: Tensor) -> None:
        if name in self._coded:
            scheme, scale_name = self._coded[name]
            scheme.read_rows(self._source, name, scale_name, first_row, destination)
        else:
            stored_name = self._kept_scales.get(name, name)
            self._source.read_rows(stored_name, first_row, destination)


def kept_scale_name(name: str) -> str:
    """Under which name the scales of a matrix appear that stays codes."""
    return f"{name.removesuffix('.weight')}.scale"
