"""How `sources/skinny.cu` is compiled and launched, as a function of shapes. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkinnyLaunch:
    """Of products of few rows; names as in `sources/skinny.cu`."""

    piece: int
    num_stages: int
    num_fillers: int
    pieces_held: int
    num_blocks: int
    """At most; one for each processor."""
    shared_bytes: int


ROWS = 8
"""That a block of threads multiplies at once."""
OUTPUTS = 16
"""Rows of the weight in a tile."""
NUM_WARPS = 8
"""Besides those that fill the ring."""
NUM_BUFFERS = 4
"""For sums of tiles that some warps still add up while others go on."""
MAX_HELD = 7
"""Pieces of 1,024 columns that registers can hold."""
MAX_SCALES = 32
"""That a warp holds for a tile, one per lane."""
RING_BYTES = 192 * 1024
"""Of weights in flight, which keep the memory busy while a tile is added up."""
MAX_SLOTS_PER_EXPERT = 4
"""On average, up to which most lists of an expert's slots are of `ROWS` at most."""


def skinny_launch(
    num_rows: int, size: int, num_processors: int, shared_bytes: int, *, is_coded: bool = False
) -> SkinnyLaunch | None:
    """For `num_rows` rows of `size` columns; None: this kernel is not for them.

    More rows are cuBLAS's: every tile would read so much of them that it is quicker, as measured
    on an H200.

    Args:
        shared_bytes: of shared memory that the device has for one program.
        is_coded: the weight has a byte for a number, else two.
    """
    wanted = (2048, 1024, 512) if is_coded else (1024, 512, 256)
    piece = next((piece for piece in wanted if size % piece == 0), None)
    if not 0 < num_rows <= ROWS or piece is None:
        return None
    if is_coded and size // min(piece, 1024) > MAX_SCALES:
        return None
    piece_bytes = piece if is_coded else 2 * piece
    num_held = size // piece
    stage_bytes = OUTPUTS * (piece_bytes + 64) + 16  # and its two barriers
    sum_bytes = NUM_BUFFERS * NUM_WARPS * OUTPUTS * ROWS * 4
    num_stages = min(
        (shared_bytes - sum_bytes) // stage_bytes, RING_BYTES // (OUTPUTS * piece_bytes)
    )
    return SkinnyLaunch(
        piece=piece,
        num_stages=num_stages,
        num_fillers=4 if is_coded else 2,
        pieces_held=num_held if num_held * piece <= MAX_HELD * 1024 else 0,
        num_blocks=num_processors,
        shared_bytes=num_stages * stage_bytes + sum_bytes,
    )
