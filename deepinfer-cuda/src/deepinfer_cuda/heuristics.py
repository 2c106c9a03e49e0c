"""Launch configurations as pure functions of shapes. No torch, no Triton: tested without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

NUM_PROCESSORS = 132
"""Of the device that the numbers here were measured on, an H200."""
MIN_TILE = 16
"""Rows and columns that the matrix units want at least."""
MAX_SPLITS = 64
LARGE_SHARED_BYTES = 200 * 1024
"""Of shared memory for a program. Devices with as much read operands of products from there (9.0,
10.x, 11.0); others (8.x, 12.x) hold them in registers, which large tiles overflow."""


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """Of chunks: a tile has the queries of `queries_per_tile` tokens, for all heads of a group."""

    queries_per_tile: int
    rows: int
    keys: int
    dims: int
    precision: str
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """Of single queries: each request's cache is shared out among `num_splits` programs."""

    num_splits: int
    rows: int
    keys: int
    dims: int
    precision: str
    num_warps: int
    num_stages: int


def prefill_launch(group: int, head_dim: int, dtype: str, shared_bytes: int) -> PrefillLaunch:
    """For `group` query heads per key head.

    Args:
        shared_bytes: of shared memory that the device has for one program.
    """
    is_wide = dtype == "float32"
    is_large = shared_bytes >= LARGE_SHARED_BYTES
    dims = max(MIN_TILE, _power_of_2(head_dim))
    rows = 64 if is_wide or dims > 128 else 128
    keys = 32 if is_wide or dims > 128 else (128 if is_large else 64)
    if is_wide and dims > 128 and not is_large:
        rows, keys = 32, 16
    rows = max(rows, _power_of_2(group))
    return PrefillLaunch(
        queries_per_tile=rows // group,
        rows=rows,
        keys=keys,
        dims=dims,
        precision="ieee" if is_wide else "tf32",
        num_warps=4 if rows <= 64 else 8,
        num_stages=2 if is_wide or dims > 128 else 4,
    )


def decode_launch(num_tiles: int, group: int, head_dim: int, dtype: str) -> DecodeLaunch:
    """For `num_tiles` pairs of a request and a key head."""
    is_wide = dtype == "float32"
    dims = max(MIN_TILE, _power_of_2(head_dim))
    wanted = -(-2 * NUM_PROCESSORS // max(1, num_tiles))
    return DecodeLaunch(
        num_splits=max(1, min(MAX_SPLITS, wanted)),
        rows=max(MIN_TILE, _power_of_2(group)),
        keys=32 if is_wide or dims > 128 else 64,
        dims=dims,
        precision="ieee" if is_wide else "tf32",
        num_warps=2,
        num_stages=2,
    )


def _power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
