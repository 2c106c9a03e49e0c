"""Launch configurations of latent attention as pure functions of shapes."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_cuda.heuristics import (
    LARGE_SHARED_BYTES,
    MIN_TILE,
    NUM_PROCESSORS,
    power_of_2,
)

MAX_SHARES = 64
"""Of one cache: what a merge can take."""
SHARE_COST = 0.08
"""Of one more share of a cache, as a part of reading that cache whole."""
HOPPER = 9
"""Of compute capabilities."""
INVARIANT_SHARES = 16
INVARIANT_LISTS = 4
"""The same, of a list of rows."""
INVARIANT_MIN_SHARE = 512
"""Keys of a share, where a row's bits must not depend on its batch: up to this length a cache is
not shared out at all, and whatever its length it has at most `INVARIANT_SHARES`."""

EXPANDED_BYTES = 2**28
"""Of expanded keys and values at once."""


@dataclass(frozen=True, slots=True)
class LatentLaunch:
    """A tile has some heads of one query, or all heads of several; each cache is shared out."""

    rows: int
    group: int
    """Heads of a tile."""
    queries: int
    """Of a tile."""
    keys: int
    rank: int
    """Of the latents, filled up to a power of two."""
    rope: int
    """Of the rotated keys, likewise."""
    num_shares: int
    min_share: int
    """Keys of a share at least."""
    num_warps: int
    num_stages: int
    precision: str


def latent_launch(
    num_queries: int,
    num_heads: int,
    kv_rank: int,
    rope_head_dim: int,
    dtype: str,
    major: int,
    *,
    is_decode: bool,
    invariant: bool,
) -> LatentLaunch:
    """For `num_queries` queries of `num_heads` heads each.

    Args:
        major: of the device's compute capability.
        is_decode: every request has one query.
        invariant: a row's bits must not depend on the others, nor on `is_decode`.
    """
    is_wide = dtype == "float32"
    # Products of 64 rows take operands from shared memory there. Older devices hold them in
    # registers, newer ones the values in a memory of 512 columns: both too small for that many.
    is_large = major == HOPPER and not is_wide
    rank = max(4 * MIN_TILE, power_of_2(kv_rank))  # in quarters
    rope = max(MIN_TILE, power_of_2(rope_head_dim))
    rows = 64 if is_large else MIN_TILE
    if is_decode or invariant:
        rows = min(rows, max(MIN_TILE, power_of_2(num_heads)))
    keys = 64 if is_large else 32 if not is_wide else MIN_TILE
    group = min(num_heads, rows)
    queries = 1 if is_decode or invariant else rows // group
    tiles = -(-num_queries // queries) * -(-num_heads // group)
    return LatentLaunch(
        rows=rows,
        group=group,
        queries=queries,
        keys=keys,
        rank=rank,
        rope=rope,
        num_shares=INVARIANT_SHARES if invariant else num_shares(tiles),
        min_share=INVARIANT_MIN_SHARE if invariant else keys,
        num_warps=8 if rows == 64 else 4,
        num_stages=2,
        precision="ieee" if is_wide else "tf32",
    )


@dataclass(frozen=True, slots=True)
class ExpandedLaunch:
    """A tile has some queries of one head."""

    rows: int
    keys: int
    nope: int
    """Dims of queries and keys that do not rotate, filled up to a power of two."""
    rope: int
    value: int
    num_warps: int
    num_stages: int
    precision: str


def expanded_launch(
    nope_head_dim: int, rope_head_dim: int, v_head_dim: int, dtype: str, shared_bytes: int
) -> ExpandedLaunch:
    """For heads of `nope_head_dim` + `rope_head_dim` dims, and values of `v_head_dim`.

    Args:
        shared_bytes: of shared memory that the device has for one program.
    """
    is_wide = dtype == "float32"
    is_large = shared_bytes >= LARGE_SHARED_BYTES and not is_wide
    nope, rope, value = (
        max(MIN_TILE, power_of_2(size)) for size in (nope_head_dim, rope_head_dim, v_head_dim)
    )
    return ExpandedLaunch(
        rows=128 if is_large else 32 if is_wide else 64,
        keys=64 if is_large else 32,
        nope=nope,
        rope=rope,
        value=value,
        num_warps=8 if is_large else 4,
        num_stages=3 if is_large else 2,
        precision="ieee" if is_wide else "tf32",
    )


def heads_at_a_time(num_keys: int, num_heads: int, head_bytes: int) -> int:
    """How many heads' keys and values to hold at once, `head_bytes` of one key in one head."""
    return max(1, min(num_heads, EXPANDED_BYTES // max(1, num_keys * head_bytes)))


@dataclass(frozen=True, slots=True)
class RowsLaunch:
    """Of attention to chosen rows: a tile has some heads of one query; lists are shared out."""

    rows: int
    group: int
    """Heads of a tile."""
    keys: int
    value: int
    """Dims of a value, filled up to a power of two."""
    rest: int
    """Dims of a key beyond those, likewise."""
    num_shares: int
    min_share: int
    """Keys of a share at least."""
    num_warps: int
    num_stages: int
    precision: str


def rows_launch(
    num_queries: int,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dtype: str,
    major: int,
    *,
    invariant: bool,
    is_coded: bool = False,
) -> RowsLaunch:
    """For `num_queries` queries of `num_heads` heads each; other arguments as of `latent_launch`.

    Args:
        is_coded: rows are records, which are decoded on their way.
    """
    rest = head_dim - value_dim
    sizes = (num_heads, value_dim, max(1, rest), dtype, major)
    launch = latent_launch(num_queries, *sizes, is_decode=True, invariant=invariant)
    return RowsLaunch(
        rows=launch.rows,
        group=launch.group,
        keys=launch.keys if launch.rows == 64 or not is_coded else MIN_TILE,
        value=launch.rank,
        rest=launch.rope,
        num_shares=INVARIANT_LISTS if invariant else launch.num_shares,
        min_share=launch.min_share,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        precision=launch.precision,
    )


@dataclass(frozen=True, slots=True)
class BatchedLaunch:
    """A program has a tile of rows and outputs of one group."""

    rows: int
    outputs: int
    block: int
    """Of the columns that are multiplied at a time."""
    num_warps: int
    num_stages: int
    precision: str


MAX_BATCHED_ROWS = 128
"""Up to which a product per group is bound by reading its matrix."""


def batched_launch(num_rows: int, num_outputs: int, size: int, dtype: str) -> BatchedLaunch | None:
    """For groups of [num_rows, size] times [num_outputs, size] transposed; None: torch's product
    is quicker."""
    if num_rows > MAX_BATCHED_ROWS:
        return None
    is_wide = dtype == "float32"
    rows = min(64, max(MIN_TILE, power_of_2(num_rows)))
    return BatchedLaunch(
        rows=rows,
        outputs=min(64, max(MIN_TILE, power_of_2(num_outputs))),
        block=min(64 if is_wide else 128, max(MIN_TILE, power_of_2(size))),
        num_warps=4,
        num_stages=2 if is_wide else 3,
        precision="ieee" if is_wide else "tf32",
    )


def num_shares(num_tiles: int) -> int:
    """Into how many shares to divide each cache, so that tiles fill the device evenly.

    A device takes as many programs at a time as it has processors; each more turn of them takes as
    long as one share does.
    """
    if num_tiles <= 0:
        return 1
    best = min(
        range(1, MAX_SHARES + 1),
        key=lambda shares: (
            -(-num_tiles * shares // NUM_PROCESSORS) / shares + SHARE_COST * shares
            if num_tiles * shares > NUM_PROCESSORS
            else 1 / shares
        ),
    )
    return best
