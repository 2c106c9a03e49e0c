"""Which cache rows a step's tokens read and complete, worked out once for all layers.

Everything here follows from `AttentionMeta`: shapes from host numbers, contents from device
tensors. Results stay with the meta. Knows nothing of what the rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.staging import to_device

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClosedGroups:
    """Groups of consecutive tokens that the step completes; E of them at most."""

    requests: Tensor
    """[E] int64"""
    groups: Tensor
    """[E] int64, counted from the start of the request; any number where there is none."""
    slots: Tensor
    """[E] int32 of the compressed row; -1 = there is none."""
    positions: Tensor
    """[E] int64 of the first token; 0 where there is no group."""


def token_requests(meta: AttentionMeta) -> Tensor:
    """[T] int64: which request each token belongs to."""

    def make() -> Tensor:
        lens = np.array(meta.query_lens, dtype=np.int64)
        owners = np.repeat(np.arange(len(lens)), lens)
        return to_device(owners, meta.positions.device)

    return _once(meta, "token_requests", make)


def slots_of(meta: AttentionMeta, requests: Tensor, positions: Tensor) -> Tensor:
    """Slots int64 of positions [N, ...] of requests [N]. Positions out of range give any slot."""
    width = meta.block_tables.shape[1]
    columns = torch.div(positions, meta.block_size, rounding_mode="floor").clamp_(0, width - 1)
    # LAYOUT: column of a request in the flat tables; a row of them per position would be large.
    columns += (requests * width).view(-1, *[1] * (positions.dim() - 1))
    blocks = meta.block_tables.flatten().index_select(0, columns.flatten()).long()
    return blocks.view(positions.shape) * meta.block_size + positions % meta.block_size


def window_rows(meta: AttentionMeta, window_size: int) -> Tensor:
    """[T, window_size] int32: slots that each token sees in a window, its own last; -1 = none."""

    def make() -> Tensor:
        back = torch.arange(1 - window_size, 1, device=meta.positions.device)
        seen, requests = meta.positions[:, None] + back, token_requests(meta)
        slots = slots_of(meta, requests, seen)
        return torch.where(seen >= _window_starts(meta, requests), slots, -1).int()

    return _once(meta, f"window_rows/{window_size}", make)


def compressed_rows(meta: AttentionMeta, tokens_per_row: int) -> Tensor:
    """[T, n] int32: slots of all compressed rows that each token sees, in order; -1 = none.

    Row w holds tokens w * tokens_per_row and on, and is seen from its last token on.
    """

    def make() -> Tensor:
        num_rows, device = meta.max_seq_len // tokens_per_row, meta.positions.device
        firsts = torch.arange(num_rows, device=device) * tokens_per_row
        requests = torch.arange(meta.num_reqs, device=device)
        # Per request, since those of all tokens would be large.
        slots = slots_of(meta, requests, firsts.expand(meta.num_reqs, -1)) // tokens_per_row
        of_tokens = slots.int().index_select(0, token_requests(meta))
        last_tokens = firsts + tokens_per_row - 1
        return of_tokens.masked_fill_(last_tokens > meta.positions[:, None], -1)

    return _once(meta, f"compressed_rows/{tokens_per_row}", make)


def closed_groups(meta: AttentionMeta, tokens_per_row: int) -> ClosedGroups:
    """The groups that this step's tokens complete, save those that are cached already: where the
    last token is not written (see `AttentionMeta.slot_mapping`), neither is its group."""

    def make() -> ClosedGroups:
        device, size = meta.positions.device, tokens_per_row
        counts = -(-np.array(meta.query_lens, dtype=np.int64) // size)
        owners = np.repeat(np.arange(len(counts)), counts)
        order = to_device(np.arange(len(owners)) - (counts.cumsum() - counts)[owners], device)
        requests = to_device(owners, device)
        first, end = ((meta.cu_seqlens_q[i:][requests] - i).long() for i in (0, 1))
        start = meta.positions.index_select(0, first)
        groups = start // size + order
        last = first + groups * size + (size - 1) - start
        exists = last <= end
        exists &= meta.slot_mapping.index_select(0, torch.minimum(last, end)) >= 0
        slots = slots_of(meta, requests, groups * size) // size
        slots = torch.where(exists, slots, -1).int()
        return ClosedGroups(requests, groups, slots, torch.where(exists, groups * size, 0))

    return _once(meta, f"closed_groups/{tokens_per_row}", make)


def raw_rows(
    meta: AttentionMeta, closed: ClosedGroups, tokens_per_row: int, num_groups: int
) -> Tensor:
    """[E, num_groups * tokens_per_row] int32: slots of the tokens of each group and those before.

    Args:
        meta: of the group whose cache holds the raw rows.
        closed: as `closed_groups` gives it.

    Returns:
        -1 where there is no group, and where a token is before the first one or before the start of
        the request's windows.
    """

    def make() -> Tensor:
        count = num_groups * tokens_per_row
        last = (closed.groups + 1) * tokens_per_row
        positions = last[:, None] + torch.arange(-count, 0, device=last.device)
        slots = slots_of(meta, closed.requests, positions)
        is_read = positions >= _window_starts(meta, closed.requests)
        is_read &= closed.slots[:, None] >= 0
        return torch.where(is_read, slots, -1).int()

    return _once(meta, f"raw_rows/{tokens_per_row}/{num_groups}", make)


def _window_starts(meta: AttentionMeta, requests: Tensor) -> Tensor | int:
    """[N, 1] or a number: the first position that windows of requests [N] may read."""
    if meta.window_starts is None:
        return 0
    return meta.window_starts.index_select(0, requests)[:, None]


def batch_of(meta: AttentionMeta, requests: Sequence[int]) -> tuple[Tensor, AttentionMeta]:
    """Some requests of a batch as a batch of their own.

    Returns:
        Their rows among the tokens, [T'] int64, and their meta.
    """

    def make() -> tuple[Tensor, AttentionMeta]:
        lens = np.array(meta.query_lens, dtype=np.int64)
        ends = lens.cumsum()
        spans = [np.arange(ends[request] - lens[request], ends[request]) for request in requests]
        device, starts = meta.positions.device, meta.window_starts
        rows, picked = to_device(np.concatenate(spans), device), to_device(requests, device)
        part = AttentionMeta(
            cu_seqlens_q=to_device([0, *lens[list(requests)].cumsum()], device).int(),
            seq_lens=meta.seq_lens[picked],
            block_tables=meta.block_tables[picked],
            slot_mapping=meta.slot_mapping[rows],
            positions=meta.positions[rows],
            block_size=meta.block_size,
            query_lens=[meta.query_lens[request] for request in requests],
            seq_len_bounds=[meta.seq_len_bounds[request] for request in requests],
            window_starts=None if starts is None else starts[picked],
        )
        return rows, part

    return _once(meta, f"batch_of {requests}", make)


def _once(meta: AttentionMeta, key: str, make: Callable[[], T]) -> T:
    if key not in meta.plans:
        meta.plans[key] = make()
    return cast(T, meta.plans[key])
