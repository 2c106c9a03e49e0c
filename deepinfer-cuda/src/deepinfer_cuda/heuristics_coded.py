"""Launch configurations of products with coded weights, as pure functions of shapes."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_cuda.heuristics import NUM_PROCESSORS

MIN_ROUNDED_ROWS = 9
"""From which rounding rows pays, where a model bears it. A guess below 64: with 32 rows as they are
products took longer than with 128 that were rounded (docs/log/2026-12-01-h200.md)."""
MAX_SKINNY_ROWS = 32
"""Up to which a product is bound by reading its weight, so that each row may see all of it."""


@dataclass(frozen=True, slots=True)
class CodedLaunch:
    """Of rows as they are: a program has `outputs` outputs of `rows` rows."""

    rows: int
    outputs: int
    groups: int
    """Of `block` columns that a program multiplies at a time."""
    block: int
    prefetched: int
    """KiB of the weight that a program asks for before its inputs are there."""
    num_warps: int
    num_stages: int
    is_packed: bool = True


def coded_launch(
    num_rows: int, num_outputs: int, size: int, dtype: str, scheme: str
) -> CodedLaunch:
    """For [num_rows, size] times [num_outputs, size] transposed."""
    if dtype == "float32" or num_rows > MAX_SKINNY_ROWS:
        return invariant_launch(num_rows, dtype, scheme)
    rows = 8 if num_rows <= 8 else 16 if num_rows <= 16 else 32
    # One group makes the longest reads; several keep enough programs busy.
    groups = 4
    while groups > 1 and num_outputs * groups > 64 * 6 * NUM_PROCESSORS:
        groups //= 2
    groups = min(groups, 64 // rows)
    return CodedLaunch(
        rows=rows,
        outputs=64 // groups,
        groups=groups,
        block=128,
        prefetched=64,
        num_warps=4,
        num_stages=5,
    )


def invariant_launch(num_rows: int, dtype: str, scheme: str) -> CodedLaunch:
    """The columns of an output are summed up one step after another, whatever the batch."""
    if dtype == "float32":
        rows = 16 if num_rows <= 16 else 32
        return CodedLaunch(rows, 32, 1, 64, 0, num_warps=4, num_stages=2)
    rows = next((rows for rows in (16, 32, 64) if num_rows <= rows), 128)
    return CodedLaunch(
        rows=rows,
        outputs=64 if rows <= 64 else 128,
        groups=1,
        block=128 if scheme == "fp8_block128" else 64,
        prefetched=64 if rows == 16 else 0,
        num_warps=4 if rows <= 64 else 8,
        num_stages=4 if rows <= 32 else 3,
    )


@dataclass(frozen=True, slots=True)
class ScaledLaunch:
    """Of rounded rows: a program has `outputs` outputs of `halves` times `rows` rows."""

    rows: int
    outputs: int
    halves: int
    splits: int
    """Programs that share the columns of one tile."""
    swap: bool
    """Whether the weight is the left operand."""
    is_described: bool
    """Whether tiles are copied by descriptor, where the device can."""
    num_warps: int
    num_stages: int


def scaled_launch(
    num_rows: int, num_outputs: int, size: int, group: int | None, shared_bytes: int
) -> ScaledLaunch:
    """For [num_rows, size] times [num_outputs, size] transposed.

    Args:
        group: numbers that share a scale; None: the row.
        shared_bytes: of shared memory that the device has for one program.
    """
    if group is None or group < 128:
        rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        return ScaledLaunch(rows, 128, 1, 1, rows < 64, False, num_warps=4, num_stages=3)
    if num_rows <= 64:
        rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        splits = _splits(-(-num_outputs // 128), size)
        # Triton has a stage less than it is told to have, and some numbers besides.
        num_stages = min(6, (shared_bytes - 1024) // ((rows + 128) * group) + 1)
        return ScaledLaunch(rows, 128, 1, splits, True, True, num_warps=4, num_stages=num_stages)
    tiles = -(-num_outputs // 128) * -(-num_rows // 128)
    splits = _splits(tiles, size) if num_rows <= 512 else 1
    return ScaledLaunch(128, 128, 1, splits, False, True, num_warps=8, num_stages=4)


def _splits(num_tiles: int, size: int) -> int:
    """So that each processor has two programs, of which none has less than four groups."""
    wanted = 2 * NUM_PROCESSORS // num_tiles
    return max(1, min(wanted, size // 512, 8))
