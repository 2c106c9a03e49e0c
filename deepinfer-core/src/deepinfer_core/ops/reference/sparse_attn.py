"""Reference of attention to chosen rows. A query's bits do not depend on its batch.

Queries go in tiles of one size and rows in splits of one length: products of one shape. Splits are
merged in order (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.kv import read_slots
from deepinfer_core.ops.reference.lanes import elementwise

TILE = 8
SPLIT = 64
MIN_ROWS = 8
"""Heads of a product, and `DIM_MULTIPLE` its dims: as in `invariant_attn`."""
DIM_MULTIPLE = 8


def sparse_mla(
    q: Tensor,
    cache: Tensor,
    rows: Tensor,
    scale: float,
    value_dim: int,
    sinks: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_rows: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.sparse_mla`."""
    num_tokens, num_heads, head_dim = q.shape
    o = q.new_empty(num_tokens, num_heads, value_dim)
    lse = torch.empty(num_tokens, num_heads, device=q.device)
    pairs = ((cache, rows), (extra_cache, extra_rows))
    sources = [
        (held, listed)
        for held, listed in pairs
        if held is not None and listed is not None and listed.shape[1]
    ]
    fill = (0, -head_dim % DIM_MULTIPLE, 0, max(0, MIN_ROWS - num_heads))
    for first in range(0, num_tokens, TILE):
        tile = slice(first, first + TILE)
        count = min(TILE, num_tokens - first)
        queries = F.pad(q[tile].float(), (*fill, 0, TILE - count)).mul_(scale)
        state = _State(queries, sinks)
        for held, listed in sources:
            missing = -listed.shape[1] % SPLIT
            slots = F.pad(listed[tile], (0, missing, 0, TILE - count), value=-1)
            for split in torch.split(slots, SPLIT, dim=1):
                flat = read_slots(held, split.long().clamp(min=0).flatten())
                keys = flat.view(*split.shape, head_dim).float()
                state.add(queries, F.pad(keys, fill[:2]), split < 0)
        tile_o, tile_lse = state.finish()
        o[tile] = tile_o[:count, :num_heads, :value_dim].to(q.dtype)
        lse[tile] = tile_lse[:count, :num_heads]
    return (o, lse) if return_lse else o


class _State:
    """Attention over the splits so far. A split without rows changes nothing, not even a bit."""

    def __init__(self, queries: Tensor, sinks: Tensor | None) -> None:
        self.lowest = torch.finfo(queries.dtype).min
        self.peak = queries.new_full((*queries.shape[:2], 1), self.lowest)
        self.total = torch.zeros_like(self.peak)
        self.values = torch.zeros_like(queries)
        if sinks is not None:
            num_heads = sinks.shape[0]
            self.peak[:, :num_heads] = sinks.float().view(1, -1, 1)
            self.total[:, :num_heads] = 1.0

    def add(self, queries: Tensor, keys: Tensor, is_hidden: Tensor) -> None:
        """queries [tile, H, D], keys [tile, SPLIT, D], is_hidden [tile, SPLIT]."""
        # What stands for no row may be nan, and nan times nothing is nan.
        keys = keys.masked_fill(is_hidden.unsqueeze(2), 0.0)
        hidden = is_hidden.unsqueeze(1)
        scores = torch.bmm(queries, keys.transpose(1, 2)).masked_fill_(hidden, self.lowest)
        peak = torch.maximum(self.peak, scores.amax(dim=-1, keepdim=True))
        weights = elementwise(torch.exp_, scores - peak).masked_fill_(hidden, 0.0)
        kept = elementwise(torch.exp_, self.peak - peak)
        self.total = self.total * kept + weights.sum(dim=-1, keepdim=True)
        self.values = self.values * kept + torch.bmm(weights, keys)
        self.peak = peak

    def finish(self) -> tuple[Tensor, Tensor]:
        """o [tile, H, D] and lse [tile, H]; zeros and -inf where nothing was seen."""
        o = self.values / self.total.clamp(min=torch.finfo(self.total.dtype).tiny)
        return o, (self.peak + elementwise(torch.log_, self.total)).squeeze(-1)
