"""A batch as calls of equally many queries, which is what dense operators take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import batch_of
from deepinfer_core.plugin_api import Problem
from torch import Tensor

MAX_MASK_BYTES = 2**27
"""Of one call: longer chunks are attended to in pieces."""

Attended = tuple[Tensor, Tensor | None]


@dataclass(slots=True)
class Group:
    """Requests of a batch that have equally many queries, or some queries of one request."""

    rows: Tensor | None
    """[T'] of their tokens; None: all of the batch in order."""
    positions: Tensor
    """[B, S] of the queries."""
    bounds: Sequence[int]
    """Host, at least the lengths of the B requests."""
    tables: Tensor
    """[B, n] int32, up to the longest bound."""
    block_size: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """By window, what `hidden` gives."""
    scaled: dict[int, Tensor] = field(default_factory=dict)
    """Tables of pages that hold so many blocks for each."""

    @property
    def num_queries(self) -> int:
        return self.positions.shape[1]

    def hidden(self, window: int | None = None) -> Tensor:
        """[B, S, n * block_size] bool: keys that a query does not see."""
        if window not in self.masks:
            num_keys = self.tables.shape[1] * self.block_size
            keys = torch.arange(num_keys, device=self.tables.device)
            positions = self.positions.unsqueeze(2)
            hidden = keys > positions
            if window is not None:
                hidden |= keys <= positions - window
            self.masks[window] = hidden
        return self.masks[window]

    def tables_of(self, step: int) -> Tensor:
        """[B, n]: the tables, for blocks of which a cache has every `step`-th."""
        if step not in self.scaled:
            self.scaled[step] = self.tables * step
        return self.scaled[step]

    def take(self, tokens: Tensor) -> Tensor:
        """Rows [T, ...] of the batch as [B, S, ...]."""
        own = tokens if self.rows is None else tokens.index_select(0, self.rows)
        return own.reshape(*self.positions.shape, *tokens.shape[1:])


def plan(problem: Problem, meta: AttentionMeta) -> list[Group]:
    """The batch by number of queries; shared by the layers of a step."""
    del problem
    members: dict[int, list[int]] = {}
    for request, count in enumerate(meta.query_lens):
        if count:
            members.setdefault(count, []).append(request)
    return [
        piece for count, requests in members.items() for piece in _pieces(meta, count, requests)
    ]


def attend_by_group(
    groups: Sequence[Group],
    o: Tensor,
    attend: Callable[[Group], Attended],
    *,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """What all groups give, token by token.

    Args:
        o: [T, H, D] to fill.
        attend: o [B, S, H, D] of a group, and lse [B, S, H] if it is asked for.
    """
    lse = o.new_empty(o.shape[:2], dtype=torch.float32)
    for group in groups:
        part, part_lse = attend(group)
        if group.rows is None:
            o.copy_(part.reshape(o.shape))
        else:
            o.index_copy_(0, group.rows, part.reshape(-1, *o.shape[1:]))
        if part_lse is not None:
            rows = part_lse.reshape(-1, o.shape[1])
            lse = rows if group.rows is None else lse.index_copy_(0, group.rows, rows)
    return (o, lse) if return_lse else o


def _pieces(meta: AttentionMeta, count: int, requests: Sequence[int]) -> list[Group]:
    """One group, or for masks that would be large, one for each request and stretch of queries."""
    bounds = [meta.seq_len_bounds[request] for request in requests]
    num_blocks = max(1, -(-max(bounds) // meta.block_size))
    row_bytes = num_blocks * meta.block_size
    is_small = len(requests) * count * row_bytes <= MAX_MASK_BYTES
    if len(requests) > 1 and not is_small:
        return [piece for request in requests for piece in _pieces(meta, count, [request])]
    rows, part = (None, meta) if len(requests) == meta.num_reqs else batch_of(meta, requests)
    tables = part.block_tables[:, :num_blocks].contiguous()
    positions = part.positions.view(len(requests), count)
    whole = Group(rows, positions, bounds, tables, meta.block_size)
    if is_small:
        return [whole]
    rows = torch.arange(count, device=tables.device) if rows is None else rows
    length = max(1, MAX_MASK_BYTES // row_bytes)
    return [
        replace(whole, rows=some, positions=positions[:, first : first + length], masks={})
        for first, some in zip(range(0, count, length), torch.split(rows, length), strict=True)
    ]
