"""How `sources/skinny.cu` is compiled and launched, as a function of shapes. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkinnyLaunch:
    """Of products of few rows; names as in `sources/skinny.cu`."""

    piece: int
    num_stages: int
    num_fillers: int
    row_groups: int
    pieces_held: int
    num_blocks: int
    """At most; one for each processor."""
    shared_bytes: int


MAX_SKINNY_ROWS = 8
"""Beyond, every tile reads so much of the rows that cuBLAS is quicker: measured on an H200."""
MAX_HELD = 7
"""Pieces of eight rows that registers can hold."""


def skinny_launch(
    num_rows: int, size: int, num_processors: int, shared_bytes: int
) -> SkinnyLaunch | None:
    """For `num_rows` rows of `size` columns; None: this kernel is not for them.

    Args:
        shared_bytes: of shared memory that the device has for one program.
    """
    pieces = [piece for piece in (1024, 512, 256) if size % piece == 0]
    if not 0 < num_rows <= MAX_SKINNY_ROWS or not pieces:
        return None
    piece, groups = pieces[0], 1
    stage_bytes = 16 * (2 * piece + 64) + 16  # and its two barriers
    sum_bytes = 2 * 8 * 16 * 8 * groups * 4
    num_stages = min((shared_bytes - sum_bytes) // stage_bytes, 6 * 1024 // piece)
    return SkinnyLaunch(
        piece=piece,
        num_stages=num_stages,
        num_fillers=2,
        row_groups=groups,
        pieces_held=size // piece if size // piece <= MAX_HELD else 1,
        num_blocks=num_processors,
        shared_bytes=num_stages * stage_bytes + sum_bytes,
    )
