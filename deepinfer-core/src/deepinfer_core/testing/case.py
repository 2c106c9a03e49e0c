"""Cases: calls of an op with random inputs and the truth about them.

A case knows shapes and which optional features it uses; `Maker` knows dtype, device and whether
rows are strided. Truth is computed in float64 by formulas of the case's own, not by the reference
kernels, which are checked like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Maker:
    """Makes inputs: on the CPU from a seed, so that every device sees the same."""

    def __init__(
        self, dtype: torch.dtype, device: str = "cpu", *, seed: int = 0, strided: bool = False
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.strided = strided
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Contiguous normal numbers."""
        values = torch.randn(shape, generator=self._generator) * scale
        return values.to(dtype or self.dtype).to(self.device)

    def rows(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers, whose first axis is strided if this maker is: a slice of wider rows."""
        if not self.strided:
            return self.normal(*shape, scale=scale)
        wider = self.normal(shape[0], shape[1] + 3, *shape[2:], scale=scale)
        return wider[:, 2 : 2 + shape[1]]

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype) -> Tensor:
        """Integers of [low, high)."""
        values = torch.randint(low, high, shape, generator=self._generator)
        return values.to(dtype).to(self.device)

    def permutation(self, size: int) -> Tensor:
        """A shuffled range, int64."""
        return torch.randperm(size, generator=self._generator).to(self.device)


@dataclass(slots=True)
class Call:
    """Arguments of one call and what must come of it."""

    kwargs: dict[str, Any]
    expected: Sequence[Tensor] | Callable[[], Sequence[Tensor]]
    """One for each observed output: float64 on the CPU, or integers. A function where truth is
    slow and many laws do not need it; it may then read inputs after the call."""
    observe: Callable[[Any], Sequence[Tensor]] = field(default=lambda result: flatten(result))
    """Picks the outputs from the result; ops that write in place observe what they wrote."""
    writes: frozenset[str] = frozenset()
    """Arguments that the op may modify."""
    check: Callable[[Sequence[Tensor]], None] | None = None
    """Judges the outputs instead of a comparison with `expected`."""

    def truth(self) -> Sequence[Tensor]:
        return self.expected() if callable(self.expected) else self.expected


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call, for any number of tokens."""

    name: str
    build: Callable[[Maker, int], Call]
    features: frozenset[str] = frozenset()
    """Optional features that the call uses; it runs for kernels that claim them all."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Named static sizes, as layers bind them."""
    token_counts: tuple[int, ...] = (1, 7, 33)
    scheme: str | None = None
    dtypes: tuple[str, ...] | None = None
    """None: any floating point dtype that the kernel claims."""


@dataclass(frozen=True, slots=True)
class OpCases:
    """All cases of one op."""

    make: Callable[[Sizes], Sequence[Case]]
    rows: tuple[str, ...] = ()
    """Arguments whose first axis is tokens: a subset of rows must give the same rows. Empty for
    ops that have laws of their own."""


class Sizes:
    """Chooses sizes that a kernel declares in `caps.dims`, the preferred ones if it can."""

    def __init__(self, dims: Mapping[str, Sequence[int]]) -> None:
        self._dims = dims

    def pick(self, name: str, *preferred: int) -> int:
        """One size."""
        declared = self._dims.get(name)
        if not declared:
            return preferred[0]
        return next((size for size in preferred if size in declared), min(declared))

    def several(self, name: str, *preferred: int) -> tuple[int, ...]:
        """All preferred sizes that are declared; the smallest declared one if none is."""
        declared = self._dims.get(name)
        if not declared:
            return preferred
        return tuple(size for size in preferred if size in declared) or (min(declared),)


def flatten(result: Any) -> list[Tensor]:
    """The tensors of a result, in order; None is left out."""
    parts = result if isinstance(result, tuple | list) else (result,)
    return [part for part in parts if part is not None]


def wide(x: Tensor) -> Tensor:
    """A float64 copy on the CPU."""
    return x.detach().cpu().double()


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 values as this dtype holds them."""
    return x.to(dtype).double()
