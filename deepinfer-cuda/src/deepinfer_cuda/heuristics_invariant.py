"""Launches of products whose bits do not depend on the batch. No torch, no Triton.

Which tile serves may depend on the number of rows, since each gives the same bits: one kind of
matrix instruction, fed with the same columns in the same order. So no tile has fewer than 64 rows,
with which Hopper would take another kind, and none shares out the columns of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_cuda.heuristics import LARGE_SHARED_BYTES, NUM_PROCESSORS

BLOCK = 64
"""Columns that are multiplied at a time, in every tile."""


@dataclass(frozen=True, slots=True)
class InvariantLaunch:
    """A program has the products of `rows` rows with `outputs` rows of the weight."""

    rows: int
    outputs: int
    block: int
    precision: str
    num_warps: int
    num_stages: int


def _tile(rows: int, outputs: int, num_warps: int, num_stages: int) -> InvariantLaunch:
    return InvariantLaunch(rows, outputs, BLOCK, "tf32", num_warps, num_stages)


_TILES = (
    _tile(128, 256, num_warps=8, num_stages=3),
    _tile(128, 128, num_warps=8, num_stages=4),
    _tile(128, 64, num_warps=4, num_stages=4),
    _tile(64, 64, num_warps=4, num_stages=6),
    _tile(64, 32, num_warps=4, num_stages=8),
)
"""From the one that reads its operands least often to the one with most programs."""
_SMALL_TILES = (
    _tile(128, 128, num_warps=8, num_stages=3),
    _tile(64, 64, num_warps=4, num_stages=4),
    _tile(64, 32, num_warps=4, num_stages=6),
)
"""Where operands are held in registers, and shared memory is scarce."""
_WIDE = InvariantLaunch(64, 64, 32, precision="ieee", num_warps=4, num_stages=2)


def invariant_launch(
    num_rows: int, num_outputs: int, num_groups: int, dtype: str, shared_bytes: int
) -> InvariantLaunch:
    """For [num_rows, K] times [num_outputs, K] transposed, `num_groups` times.

    The first tile of which there is one for each processor, else the last.
    """
    if dtype == "float32":
        return _WIDE
    tiles = _TILES if shared_bytes >= LARGE_SHARED_BYTES else _SMALL_TILES
    for tile in tiles:
        count = -(-num_rows // tile.rows) * -(-num_outputs // tile.outputs) * num_groups
        if num_rows >= tile.rows and count >= NUM_PROCESSORS:
            return tile
    return tiles[-1]
