"""`TokenPool`: the last tokens of every row, on the device.

A ring per row, addressed by absolute position modulo the ring's length, so that the next forward
and the sampling stages read tokens that the host has not seen. Does not know requests; whoever
reads a position must know that it was written and not overwritten since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.staging import stage

Indices = TypeVar("Indices", NDArray[np.int64], Tensor)
MIN_RING_LEN = 64
MAX_IN_FLIGHT_TOKENS = 16
"""Positions that may be written ahead of one that is still to be read."""


class TokenPool:
    """Ring of token ids per row.

    Args:
        max_num_seqs: number of rows.
        device: where the ids live.
    """

    def __init__(self, max_num_seqs: int, device: torch.device | str = "cpu") -> None:
        self._ring = torch.zeros(max_num_seqs, MIN_RING_LEN, dtype=torch.int32, device=device)

    @property
    def max_history(self) -> int:
        """How far behind the newest token stages may read."""
        return int(self._ring.shape[1]) - MAX_IN_FLIGHT_TOKENS

    def start_row(self, row: int, token_ids: Sequence[int], *, history_len: int = 0) -> None:
        """Fill a row with the end of what is known of a request.

        Args:
            row: the row, whose old content is void.
            token_ids: the whole prompt, and what was drawn in an earlier row; position 0 is the
                first token.
            history_len: tokens behind the newest one that this row's stages read; the rings
                of all rows grow to cover it.
        """
        while self.max_history < history_len:
            # A position modulo 2R is one modulo R, or that plus R: both hold the old value.
            self._ring = self._ring.repeat(1, 2)
        ring_len = self._ring.shape[1]
        start = max(0, len(token_ids) - ring_len)
        places = np.arange(start, len(token_ids)) % ring_len + row * ring_len
        device = self._ring.device
        (device_places,), (tail,) = stage([places], [np.array(token_ids[start:])], device)
        self.write(device_places, tail)

    def places(self, rows: Indices, positions: Indices) -> Indices:
        """Where tokens lie, for `read` and `write`; void once a row has started.

        Args:
            rows, positions: int64, both tensors or both arrays on the host, broadcastable.
                Positions below 0 give places without meaning.
        """
        ring_len = self._ring.shape[1]
        return rows * ring_len + positions % ring_len

    def write(self, places: Tensor, token_ids: Tensor) -> None:
        """Put tokens. Arguments are [n] on the pool's device: int64, int32."""
        self._ring.view(-1).index_copy_(0, places, token_ids)

    def read(self, places: Tensor) -> Tensor:
        """The tokens at `places`, which are on the pool's device: int32 of the same shape."""
        return self._ring.view(-1).index_select(0, places.flatten()).view(places.shape)
