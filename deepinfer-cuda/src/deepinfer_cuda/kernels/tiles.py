"""Which queries each tile of a step has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of queries; each has some of one request's."""

    requests: Tensor
    """[N] int32"""
    firsts: Tensor
    """[N] int32, the tile's first query, counted from its request's first."""


def plan_tiles(meta: AttentionMeta, size: int, below: int | None = None) -> Tiles:
    """Cut each request's queries into tiles of `size`.

    Args:
        below: leave out requests with so many queries or more.

    Counts come from the host, contents from the device: nothing is copied and nothing waits, so it
    can be recorded.
    """
    device = meta.cu_seqlens_q.device
    if all(count == 1 for count in meta.query_lens):
        requests = torch.arange(meta.num_reqs, dtype=torch.int32, device=device)
        return Tiles(requests, torch.zeros_like(requests))
    query_lens, lens = meta.query_lens, meta.cu_seqlens_q.diff()
    if below is not None:
        query_lens = [count for count in query_lens if count < below]
        lens = lens.masked_fill(lens >= below, 0)
    num_tiles = sum(-(-count // size) for count in query_lens)
    counts = (lens + size - 1) // size
    ends = counts.cumsum(0)
    # From the last tile on: a request's last tiles see most keys, and had better not start last.
    tiles = torch.arange(num_tiles - 1, -1, -1, device=device)
    requests = torch.searchsorted(ends, tiles, right=True)
    firsts = (tiles - (ends - counts)[requests]) * size
    return Tiles(requests.int(), firsts.int())
