"""`Mesh`: among which ranks a model is divided, and what share of it is this rank's.

A value that layers read off their `OpTable`. Knows no model and starts no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """What is asked of a process group besides collectives."""

    def size(self) -> int: ...

    def rank(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` equal parts along an axis; by default all of it."""

    index: int = 0
    count: int = 1
    axis: int = 0

    def size_of(self, whole: int) -> int:
        """How much of `whole` equal things it is."""
        return whole // self.count

    def along(self, axis: int) -> Share:
        """The same part of another axis."""
        return replace(self, axis=axis)

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what this share, of the given shape, is a part of."""
        sizes = list(shape)
        if self.count > 1:
            sizes[self.axis] *= self.count
        return tuple(sizes)

    def part_of(self, whole: Tensor) -> Tensor:
        """A view of this part of a tensor."""
        size = self.size_of(whole.shape[self.axis])
        return whole.narrow(self.axis, self.index * size, size)


WHOLE = Share()


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks that compute one model together; by default this one alone."""

    tp_group: Group | None = None
    """Those that hold a share of every layer. None: one rank, and no collective is called."""

    @property
    def tp_size(self) -> int:
        return 1 if self.tp_group is None else self.tp_group.size()

    @property
    def tp_rank(self) -> int:
        return 0 if self.tp_group is None else self.tp_group.rank()

    def share(self, whole: int, things: str) -> Share:
        """This rank's part of so many things, such as heads.

        Raises:
            ConfigError: they cannot be divided equally.
        """
        if whole % self.tp_size:
            raise ConfigError(
                f"{whole} {things} cannot be divided equally",
                field="mesh.tp_size",
                value=self.tp_size,
                allowed=f"divisors of {whole}",
            )
        return Share(self.tp_rank, self.tp_size)

    def share_or_repeat(self, whole: int, things: str) -> Share:
        """As `share`; of fewer things than ranks each is on several ranks, one after the other.

        Raises:
            ConfigError: neither number divides the other.
        """
        if self.tp_size % whole == 0:
            return Share(self.tp_rank * whole // self.tp_size, whole)
        if whole % self.tp_size:
            raise ConfigError(
                f"{whole} {things} can neither be divided equally nor repeated equally often",
                field="mesh.tp_size",
                value=self.tp_size,
                allowed=f"divisors and multiples of {whole}",
            )
        return self.share(whole, things)


ALONE = Mesh()
