"""Host integers on their way to a device: packed into one page-locked buffer, copied once.

Knows nothing of what the integers mean. Never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

IntArray = NDArray[np.int64] | NDArray[np.int32]


def to_device(values: ArrayLike, device: torch.device) -> Tensor:
    """Integers as an int64 tensor of the same shape.

    By way of numpy, which reads lists several times as fast as torch.
    """
    return stage([np.asarray(values, dtype=np.int64)], [], device)[0][0]


def stage(
    longs: Sequence[IntArray], ints: Sequence[IntArray], device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Arrays as tensors of the same shapes, int64 and int32. One copy to the device for all.

    On the CPU the tensors are the arrays themselves where the type allows it, so whoever stages
    an array gives it away.
    """
    if device.type == "cpu":
        return (
            [torch.from_numpy(array.astype(np.int64, copy=False)) for array in longs],
            [torch.from_numpy(array.astype(np.int32, copy=False)) for array in ints],
        )
    # Fresh each time: torch's allocator of page-locked memory reuses it only after the copy.
    host = pack(longs, ints, pin_memory=torch.accelerator.is_available())
    return unpack(host.to(device, non_blocking=True), longs, ints)


def pack(longs: Sequence[IntArray], ints: Sequence[IntArray], *, pin_memory: bool) -> Tensor:
    """All arrays in one int64 buffer on the host."""
    long_sizes, int_sizes = _padded(longs, 2), _padded(ints, 4)
    num_longs = sum(long_sizes)
    host = torch.empty(num_longs + sum(int_sizes) // 2, dtype=torch.int64, pin_memory=pin_memory)
    content = host.numpy()
    _fill(content[:num_longs], longs, long_sizes)
    _fill(content[num_longs:].view(np.int32), ints, int_sizes)
    return host


def unpack(
    staged: Tensor, longs: Sequence[IntArray], ints: Sequence[IntArray]
) -> tuple[list[Tensor], list[Tensor]]:
    """Views of what `pack` packed, wherever it is now."""
    long_sizes, int_sizes = _padded(longs, 2), _padded(ints, 4)
    num_longs = sum(long_sizes)
    return (
        _views(staged[:num_longs], longs, long_sizes),
        _views(staged[num_longs:].view(torch.int32), ints, int_sizes),
    )


def _padded(arrays: Sequence[IntArray], unit: int) -> list[int]:
    # LAYOUT: array after array, each from a whole number of 16 bytes on, as kernels like it.
    return [-(-array.size // unit) * unit for array in arrays]


def _fill(target: NDArray[Any], arrays: Sequence[IntArray], sizes: Sequence[int]) -> None:
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        target[start : start + array.size] = array.reshape(-1)
        start += size


def _views(source: Tensor, arrays: Sequence[IntArray], sizes: list[int]) -> list[Tensor]:
    pieces = source.split_with_sizes(sizes)
    return [
        piece[: array.size].view(array.shape) for piece, array in zip(pieces, arrays, strict=True)
    ]
