"""Writes into the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.kernels.pages import Pages, as_pages, scaled_slots

SCATTERED = (torch.bfloat16, torch.float16)
"""What the operator for pairs of caches takes."""


def store(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slot_mapping: Tensor,
    plan: object | None = None,
) -> None:
    """See `deepinfer_core.ops.specs.kv.store`."""
    del plan
    if not k.numel():
        return
    if k.dtype == torch.uint8:  # records, which the operators know as signed bytes
        k, k_cache = k.view(torch.int8), k_cache.view(torch.int8)
    keys, values = as_pages(k_cache), None if v_cache is None else as_pages(v_cache)
    if v is None or v_cache is None:
        _store_rows(k, k_cache, keys, slot_mapping)
    elif keys is None or values is None or k.dtype not in SCATTERED:
        _store_rows(k, k_cache, keys, slot_mapping)
        _store_rows(v, v_cache, values, slot_mapping)
    else:
        slots = scaled_slots(slot_mapping, k_cache.shape[1], keys.step).clamp(min=0)
        caches = keys.cache, values.cache
        k, v = (_or_first(new, old, slot_mapping) for new, old in zip((k, v), caches, strict=True))
        torch.ops.npu.npu_scatter_pa_kv_cache(k, v, *caches, slots.int(), cache_mode="Norm")


def _store_rows(rows: Tensor, cache: Tensor, pages: Pages | None, slot_mapping: Tensor) -> None:
    size = cache.shape[1]
    rows = _or_first(rows, cache, slot_mapping)
    if pages is None:
        slots = slot_mapping.clamp(min=0).long()
        cache[slots // size, slots % size] = rows
        return
    slots = scaled_slots(slot_mapping, size, pages.step).clamp(min=0)
    flat = pages.cache.view(-1, rows[0].numel())
    torch.ops.npu.npu_scatter_nd_update_(flat, slots.unsqueeze(1).int(), rows.flatten(1))


def _or_first(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Tensor:
    """What to write where -1 says not to write: slot 0, which is of no request, as it is."""
    is_written = (slot_mapping >= 0).view(-1, *[1] * (rows.dim() - 1))
    return torch.where(is_written, rows, cache[0, 0])
