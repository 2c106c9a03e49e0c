"""What the stages of one step see: which row each logits row belongs to, and its position.

Owns the copies of host integers to the device. Several logits rows may belong to one row (several
positions of one request), so everything here is per logits row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.staging import to_device


@dataclass(slots=True)
class SampleStep:
    """The L logits rows of one step."""

    rows: Sequence[int]
    """Row of each logits row."""
    positions: Sequence[int]
    """Absolute position of the token that each logits row draws."""
    token_pool: TokenPool
    device: torch.device
    mask: Tensor | None = None
    """[L, ceil(V / 32)] int32 bits of allowed tokens, of grammars."""
    drafts: Sequence[Sequence[int]] = ()
    """[L] tokens before each that may yet be rejected; empty: there are none."""
    errors: dict[int, str] = field(default_factory=dict)
    """Logits row -> why its request must end; filled by stages."""

    def ints(self, values: Sequence[int]) -> Tensor:
        """[n] int64 on the device, without waiting."""
        return to_device(values, self.device)

    def rows_of(self, indices: Sequence[int]) -> Tensor:
        """[n] int64 on the device: rows of some logits rows."""
        return self.ints([self.rows[i] for i in indices])

    def positions_of(self, indices: Sequence[int]) -> Tensor:
        """[n] int64 on the device: positions of some logits rows."""
        return self.ints([self.positions[i] for i in indices])

    def select(self, logits: Tensor, indices: Sequence[int]) -> Tensor:
        """Some logits rows: `logits` itself if these are all, a copy otherwise."""
        if self.is_all(indices):
            return logits
        return logits.index_select(0, self.ints(indices))

    def write_back(self, logits: Tensor, indices: Sequence[int], changed: Tensor) -> Tensor:
        """Put rows that `select` gave back into their places."""
        if self.is_all(indices):
            return changed
        return logits.index_copy_(0, self.ints(indices), changed)

    def is_all(self, indices: Sequence[int]) -> bool:
        return len(indices) == len(self.rows)
