"""Elementwise transcendentals whose bits do not depend on where an element lies.

Vectorised loops treat the last few elements of a range, and each thread's share of it, with other
code than the rest, and the two round differently. Here every call gets whole vectors, few enough
that no loop is shared out between threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WIDTH = 128
"""A multiple of the elements that one turn of any vector loop takes."""
PIECE = 16384
"""Half of the size from which torch shares a loop out."""


def elementwise(in_place: Callable[[Tensor], object], x: Tensor) -> Tensor:
    """Apply an in-place function to a copy of x, of any shape; the result is contiguous."""
    size = x.numel()
    flat = x.new_zeros(-(-size // WIDTH) * WIDTH)
    out = flat[:size].view(x.shape)
    out.copy_(x)
    for piece in torch.split(flat, PIECE):
        in_place(piece)
    return out
