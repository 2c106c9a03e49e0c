"""Launch configurations as pure functions of shapes. No torch, no Triton: tested without a GPU."""

from __future__ import annotations

NUM_PROCESSORS = 132
"""Of the device that the numbers here were measured on, an H200."""
MIN_TILE = 16
"""Rows and columns that the matrix units want at least."""
LARGE_SHARED_BYTES = 200 * 1024
"""Of shared memory for a program. Devices with as much read operands of products from there (9.0,
10.x, 11.0); others (8.x, 12.x) hold them in registers, which large tiles overflow."""


def power_of_2(number: int) -> int:
    """The least that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()
