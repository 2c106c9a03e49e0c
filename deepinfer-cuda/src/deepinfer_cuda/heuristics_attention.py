"""Launch configurations of attention as pure functions of shapes. No torch, no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_cuda.heuristics import (
    LARGE_SHARED_BYTES,
    MIN_TILE,
    NUM_PROCESSORS,
    power_of_2,
)
from deepinfer_cuda.tuned import tuned

MAX_SPLITS = 64
PREFETCH_BYTES = 1024
"""What one prefetch of `kernels.overlap` brings."""
LANES = 16
"""Of attention with bits that do not depend on the batch; part of what those bits are."""
MAX_PARTIAL_VALUES = 2**20
"""Results, and values of them per lane, up to which lanes are shared out among programs."""


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
    """Of single queries: each request's cache is shared out among `num_splits` programs.

    A tile has the keys of `tokens` tokens for `heads` key heads that lie beside each other.
    """

    num_splits: int
    heads: int
    rows: int
    tokens: int
    dims: int
    prefetched: int
    """Tokens of its share that a program asks for before its queries are there."""
    precision: str
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class LanesLaunch:
    """Of batch-invariant attention: tiles of chunks and of single queries alike."""

    queries_per_tile: int
    rows: int
    keys: int
    dims: int
    precision: str
    num_warps: int
    num_stages: int


@tuned()
def prefill_launch(group: int, head_dim: int, dtype: str, shared_bytes: int) -> PrefillLaunch:
    """For `group` query heads per key head.

    Args:
        shared_bytes: of shared memory that the device has for one program.
    """
    is_wide = dtype == "float32"
    is_large = shared_bytes >= LARGE_SHARED_BYTES
    dims = max(MIN_TILE, power_of_2(head_dim))
    rows = 64 if is_wide or dims > 128 else 128
    keys = 32 if is_wide or dims > 128 else (128 if is_large else 64)
    if is_wide and dims > 128 and not is_large:
        rows, keys = 32, 16
    rows = max(rows, power_of_2(group))
    return PrefillLaunch(
        queries_per_tile=rows // group,
        rows=rows,
        keys=keys,
        dims=dims,
        precision="ieee" if is_wide else "tf32",
        num_warps=4 if rows <= 64 else 8,
        num_stages=2 if is_wide or dims > 128 else 4,
    )


@tuned(grows="num_requests")
def decode_launch(
    num_requests: int, num_kv_heads: int, group: int, head_dim: int, dtype: str, shared_bytes: int
) -> DecodeLaunch:
    """For `group` query heads per key head; `shared_bytes` as in `prefill_launch`."""
    is_wide = dtype == "float32"
    dims = max(MIN_TILE, power_of_2(head_dim))
    heads = heads_of_tile(num_kv_heads, group)
    num_tiles = num_requests * num_kv_heads // heads
    is_large = shared_bytes >= LARGE_SHARED_BYTES
    keys = 32 if is_wide or dims > 128 else 64
    tokens = max(1, keys // heads)
    is_one_prefetch = heads * head_dim * (4 if is_wide else 2) == PREFETCH_BYTES
    return DecodeLaunch(
        num_splits=max(1, min(MAX_SPLITS, 2 * NUM_PROCESSORS // max(1, num_tiles))),
        heads=heads,
        rows=max(MIN_TILE, power_of_2(heads * group)),
        tokens=tokens,
        dims=dims,
        prefetched=tokens if is_one_prefetch else 0,
        precision="ieee" if is_wide else "tf32",
        num_warps=2,
        num_stages=4 if is_large and not is_wide and dims <= 128 else 3,
    )


def lanes_launch(group: int, head_dim: int, dtype: str, shared_bytes: int) -> LanesLaunch:
    """For `group` query heads per key head; `shared_bytes` as in `prefill_launch`.

    INVARIANT: depends on nothing of the batch.
    """
    is_wide = dtype == "float32"
    dims = max(MIN_TILE, power_of_2(head_dim))
    is_large = shared_bytes >= LARGE_SHARED_BYTES
    rows = max(64 if is_large and not is_wide else MIN_TILE, power_of_2(group))
    return LanesLaunch(
        queries_per_tile=rows // group,
        rows=rows,
        keys=32 if is_wide or dims > 128 else 64,
        dims=dims,
        precision="ieee" if is_wide else "tf32",
        num_warps=4,
        num_stages=5 if is_large and not is_wide and dims <= 128 else 3,
    )


def are_lanes_shared(num_tiles: int, num_values: int) -> bool:
    """Whether lanes of attention are programs of their own.

    Args:
        num_tiles: pairs of a tile and a key head.
        num_values: of the result.
    """
    return num_tiles < 4 * NUM_PROCESSORS and num_values <= MAX_PARTIAL_VALUES


def heads_of_tile(num_kv_heads: int, group: int) -> int:
    """Key heads whose query heads fit into the rows that a tile wants anyway."""
    heads = 1
    while num_kv_heads % (2 * heads) == 0 and 2 * heads * group <= MIN_TILE:
        heads *= 2
    return heads
