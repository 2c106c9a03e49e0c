"""The paged cache at the border: layers' views into pages that hold all layers, as operators want
them, which read contiguous blocks only.

LAYOUT: a view [P, s, ...] is contiguous inside a block, and its blocks lie a page apart. Where a
page is a whole number of such blocks, the pool from the view's start on is a contiguous cache of
which the view's blocks are every n-th: block b of the view is block n * b there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PAGE_SIZE = 128
MAX_ELEMENTS = 2**31 - 1
"""Operators that read pages count elements in 32 bits."""


class Pages(NamedTuple):
    """A contiguous cache, and by what to multiply numbers of blocks."""

    cache: Tensor
    """[P', s, ...]"""
    step: int


def as_pages(view: Tensor) -> Pages | None:
    """The view as a contiguous cache; None where a page is no whole number of blocks."""
    block = view[0].numel()
    if view.is_contiguous():
        return Pages(view, 1)
    if not view[0].is_contiguous() or not block or view.stride(0) % block:
        return None
    step = view.stride(0) // block
    num_blocks = (view.shape[0] - 1) * step + 1
    return Pages(view.as_strided((num_blocks, *view.shape[1:]), (block, *view.stride()[1:])), step)


def is_countable(pages: Pages) -> bool:
    return pages.cache.numel() <= MAX_ELEMENTS


def gather_blocks(view: Tensor, tables: Tensor) -> Tensor:
    """The blocks of tables [B, n] side by side: [B, n * s, ...], contiguous."""
    blocks = view.index_select(0, tables.flatten())
    return blocks.view(tables.shape[0], -1, *view.shape[2:])


def scaled_slots(slots: Tensor, block_size: int, step: int) -> Tensor:
    """Slots of a view as slots of its pages; none stays below zero."""
    if step == 1:
        return slots
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    return blocks * ((step - 1) * block_size) + slots


def repage(view: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of a batch's rows in pages of a size that every operator reads.

    Args:
        view: [P, s, W]
        tables: [B, n]

    Returns:
        pages [B * m, 128, W], and tables [B, m] int32 of them.
    """
    rows = gather_blocks(view, tables)
    rows = F.pad(rows, (0, 0, 0, -rows.shape[1] % PAGE_SIZE))
    pages = rows.view(-1, PAGE_SIZE, view.shape[2])
    numbers = torch.arange(len(pages), dtype=torch.int32, device=pages.device)
    return pages, numbers.view(len(rows), -1)
