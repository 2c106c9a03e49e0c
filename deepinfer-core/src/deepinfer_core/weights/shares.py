"""Reading a share of a tensor, where ranks divide it. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_core.parallel.mesh import Share
from deepinfer_core.weights.source import RowSource, TensorSource

CHUNK_ELEMENTS = 1 << 22
"""Read at once where rows are cut."""
BLOCK_ROWS = 128
"""Rows that share scales in a matrix of codes; who reads some of them reads from the first on."""


def whole_tensors(views: Mapping[str, Tensor], shares: Mapping[str, Share]) -> dict[str, Tensor]:
    """What a checkpoint should have: the views, and on the meta device what shares are parts of."""
    whole = {
        name: views[name].new_empty(share.whole_shape(views[name].shape), device="meta")
        for name, share in shares.items()
    }
    return {**views, **whole}


def read_share(source: TensorSource, name: str, share: Share | None, destination: Tensor) -> None:
    """As `TensorSource.read_into`, into the place of a share; None: of the whole tensor.

    A source of rows reads no rows of others, and holds few whole ones at a time; another one
    reads the whole tensor.
    """
    if share is None:
        source.read_into(name, destination)
        return
    shape, dtype = source.entries[name].shape, destination.dtype
    if not isinstance(source, RowSource):
        whole = torch.empty(shape, dtype=dtype)
        source.read_into(name, whole)
        destination.copy_(share.part_of(whole))
    elif share.axis == 0:
        source.read_rows(name, share.index * len(destination), destination)
    else:
        step = max(1, CHUNK_ELEMENTS // shape[1])
        step -= step % BLOCK_ROWS if step > BLOCK_ROWS else 0
        for first in range(0, shape[0], step):
            part = destination[first : first + step]
            rows = torch.empty(len(part), shape[1], dtype=dtype)
            source.read_rows(name, first, rows)
            part.copy_(share.part_of(rows))
