"""Reference of attention to chosen rows. A query's bits do not depend on its batch.

Each query is multiplied by its own rows, in splits of one length: products of one shape, however
many there are. Splits are merged in order (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.kv import read_slots
from deepinfer_core.ops.reference.lanes import elementwise

SPLIT = 64
HEAD_MULTIPLE, DIM_MULTIPLE = 8, 16
"""What heads and dims of a product are filled up to: others round by batch, or by threads."""
SCRATCH = 2**20
"""Numbers that are gathered at once."""


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
    record: Record | None = None,
    extra_record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.sparse_mla`."""
    num_tokens, num_heads, head_dim = q.shape
    o = q.new_empty(num_tokens, num_heads, value_dim)
    wide = torch.promote_types(q.dtype, torch.float32)
    lse = torch.empty(num_tokens, num_heads, dtype=wide, device=q.device)
    sources = [(cache, rows, record)]
    if extra_cache is not None and extra_rows is not None:
        sources.append((extra_cache, extra_rows, extra_record))
    fill = (0, -head_dim % DIM_MULTIPLE, 0, -num_heads % HEAD_MULTIPLE)
    step = max(1, SCRATCH // (SPLIT * head_dim))
    for first in range(0, num_tokens, step):
        part = slice(first, first + step)
        queries = F.pad(q[part].to(wide), fill).mul_(scale)
        state = _State(queries, sinks)
        for held, listed, kind in sources:
            for slots in _splits(listed[part]):
                keys = read_slots(held, slots.flatten().clamp(min=0), kind).to(wide)
                keys = F.pad(keys, fill[:2]).view(*slots.shape, queries.shape[2])
                state.add(queries, keys, slots < 0)
        part_o, part_lse = state.finish()
        o[part] = part_o[:, :num_heads, :value_dim].to(q.dtype)
        lse[part] = part_lse[:, :num_heads]
    return (o, lse) if return_lse else o


def _splits(rows: Tensor) -> Iterator[Tensor]:
    """[T, n] -> [T, SPLIT] int64, filled up with -1; on the CPU only those that name rows."""
    for split in torch.split(rows.long(), SPLIT, dim=1):
        if split.device.type != "cpu" or bool((split >= 0).any()):  # a device is not waited for
            yield F.pad(split, (0, SPLIT - split.shape[1]), value=-1)


class _State:
    """Attention over the splits so far. A split without rows changes nothing, not even a bit."""

    def __init__(self, queries: Tensor, sinks: Tensor | None) -> None:
        self.lowest = torch.finfo(queries.dtype).min
        self.peak = queries.new_full((*queries.shape[:2], 1), self.lowest)
        self.total = torch.zeros_like(self.peak)
        self.values = torch.zeros_like(queries)
        if sinks is not None:
            num_heads = sinks.shape[0]
            self.peak[:, :num_heads] = sinks.to(queries.dtype).view(1, -1, 1)
            self.total[:, :num_heads] = 1.0

    def add(self, queries: Tensor, keys: Tensor, is_hidden: Tensor) -> None:
        """queries [T, H, D], keys [T, SPLIT, D], is_hidden [T, SPLIT]."""
        # What stands for no row may be nan, and nan times nothing is nan.
        keys = keys.masked_fill_(is_hidden.unsqueeze(2), 0.0)
        hidden = is_hidden.unsqueeze(1)
        scores = torch.bmm(queries, keys.transpose(1, 2)).masked_fill_(hidden, self.lowest)
        peak = torch.maximum(self.peak, scores.amax(dim=-1, keepdim=True))
        weights = elementwise(torch.exp_, scores - peak).masked_fill_(hidden, 0.0)
        kept = elementwise(torch.exp_, self.peak - peak)
        self.total = self.total * kept + weights.sum(dim=-1, keepdim=True)
        self.values = self.values * kept + torch.bmm(weights, keys)
        self.peak = peak

    def finish(self) -> tuple[Tensor, Tensor]:
        """o [T, H, D] and lse [T, H]; zeros and -inf where nothing was seen."""
        o = self.values / self.total.clamp(min=torch.finfo(self.total.dtype).tiny)
        return o, (self.peak + elementwise(torch.log_, self.total)).squeeze(-1)
