"""Attention to chosen rows of one or two caches: the rows of some tokens are gathered at a time.

Rows that a head of the fused operator holds go there, with a mask; latents of 512 with rotated keys
of 64 do not fit, and go to the operator of sparse attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from deepinfer_core.ops.records import Record
from torch import Tensor

from deepinfer_ascend.kernels.fused import attend
from deepinfer_ascend.kernels.pages import as_pages, scaled_slots
from deepinfer_ascend.kernels.sparse_flash import LATENT_DIM, sparse_flash

MAX_GATHERED = 2**26
"""Numbers of rows that are gathered at once."""
PAGE_SIZE = 16


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
    """See `deepinfer_core.ops.specs.attn.sparse_mla`; records are not claimed."""
    assert record is None and extra_record is None
    o = q.new_empty(*q.shape[:2], value_dim)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    # A sink is merged in by the normaliser.
    with_lse = return_lse or sinks is not None
    for part, keys, is_none in _pieces(q, (cache, rows), (extra_cache, extra_rows)):
        sees_none = is_none.all(dim=1, keepdim=True)
        part_o, part_lse = _attend(q[part], keys, is_none, scale, with_lse=with_lse)
        if part_lse is not None:
            part_lse = part_lse.masked_fill(sees_none, -float("inf"))
            if sinks is not None:
                part_o, part_lse = _with_sinks(part_o, part_lse, sinks)
            lse[part] = part_lse
        o[part] = part_o[..., :value_dim].masked_fill(sees_none.unsqueeze(2), 0)
    return (o, lse) if return_lse else o


def sparse_latents(
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
    """See `deepinfer_core.ops.specs.attn.sparse_mla`, for latents of 512 with keys of 64; one
    cache or two, without sinks and normaliser."""
    assert record is None and extra_record is None and sinks is None and not return_lse
    o = q.new_empty(*q.shape[:2], value_dim)
    for part, keys, is_none in _pieces(q, (cache, rows), (extra_cache, extra_rows)):
        o[part] = _attend_latents(q[part], keys, is_none, scale)
    return o


def _pieces(
    q: Tensor, *sources: tuple[Tensor | None, Tensor | None]
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some tokens at a time: which, their rows [t, n, D] of all caches, and which are none."""
    given = [(held, rows) for held, rows in sources if held is not None and rows is not None]
    num_rows = sum(rows.shape[1] for _, rows in given)
    step = max(1, MAX_GATHERED // max(1, num_rows * q.shape[2]))
    for first in range(0, len(q), step):
        part = slice(first, first + step)
        keys = torch.cat([_read(held, rows[part]) for held, rows in given], dim=1)
        yield part, keys, torch.cat([rows[part] < 0 for _, rows in given], dim=1)


def _read(cache: Tensor, slots: Tensor) -> Tensor:
    """[T, n, D]; of -1 any row that is finite."""
    if not slots.numel():
        return cache.new_empty(*slots.shape, cache.shape[2])
    size, first = cache.shape[1], slots.amax(dim=1, keepdim=True).clamp(min=0)
    # Slots that nobody names may hold NaN, so that -1 repeats one that the query does name.
    slots = torch.where(slots < 0, first, slots)
    pages = as_pages(cache)
    if pages is None:
        long = slots.long()
        rows = cache[long // size, long % size]
    else:
        flat = pages.cache.view(-1, cache.shape[2])
        places = scaled_slots(slots, size, pages.step).flatten()
        rows = flat.index_select(0, places).view(*slots.shape, -1)
    return rows.nan_to_num()  # a query that names none reads slot 0, which is nobody's


def _attend(
    q: Tensor, keys: Tensor, is_none: Tensor, scale: float, *, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    rows, num_keys = keys.unsqueeze(2), keys.shape[1]
    o, lse = attend(
        q.unsqueeze(1),
        rows,
        rows,
        is_none.unsqueeze(1),
        [num_keys] * len(q),
        scale,
        num_kv_heads=1,
        return_lse=with_lse,
    )
    return o.squeeze(1), None if lse is None else lse.squeeze(1)


def _attend_latents(q: Tensor, keys: Tensor, is_none: Tensor, scale: float) -> Tensor:
    """Each token is a request of its own, whose rows are pages; those that it names come first."""
    num_tokens, num_keys = is_none.shape
    keys = torch.nn.functional.pad(keys, (0, 0, 0, -num_keys % PAGE_SIZE))
    order = is_none.int().sort(dim=1, stable=True).indices
    count = (~is_none).sum(dim=1, dtype=torch.int32)
    places = torch.arange(num_keys, device=q.device)
    indices = torch.where(places < count.unsqueeze(1), order, -1).int()
    pages, num_pages = keys.view(-1, PAGE_SIZE, keys.shape[2]), keys.shape[1] // PAGE_SIZE
    tables = torch.arange(num_tokens * num_pages, dtype=torch.int32, device=q.device)
    o = sparse_flash(
        (q[..., :LATENT_DIM], q[..., LATENT_DIM:]),
        torch.split(pages, [LATENT_DIM, q.shape[2] - LATENT_DIM], dim=-1),
        indices,
        scale,
        is_causal=False,
        block_table=tables.view(num_tokens, num_pages),
        actual_seq_lengths_query=torch.arange(1, num_tokens + 1, device=q.device).int(),
        actual_seq_lengths_kv=torch.full_like(count, num_keys),
    )
    return o.masked_fill(is_none.all(dim=1)[:, None, None], 0)


def _with_sinks(o: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """One more score per head, which takes weight and has no value."""
    total = torch.logaddexp(lse, sinks.float())
    return (o.float() * (lse - total).exp().unsqueeze(2)).to(o.dtype), total
