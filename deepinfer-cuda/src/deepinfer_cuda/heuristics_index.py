"""Launch configurations of an indexer's choice as pure functions of shapes."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_cuda.heuristics import MIN_TILE, NUM_PROCESSORS, power_of_2

MAX_SHARES = 64
"""Of one query's keys."""
MAX_ROWS = 128
"""Of a tile: query heads."""
MAX_PICK_BLOCK = 4096
"""Scores that a program looks at together."""


@dataclass(frozen=True, slots=True)
class ScoresLaunch:
    """A tile has all heads of some queries, and some keys; keys are shared out."""

    queries: int
    heads: int
    """Filled up to a power of two, so that a tile has whole queries."""
    keys: int
    dims: int
    num_shares: int
    num_warps: int
    num_stages: int


def scores_launch(
    num_queries: int,
    num_heads: int,
    head_dim: int,
    dtype: str,
    *,
    is_shared: bool,
    is_decoded: bool = False,
) -> ScoresLaunch:
    """For `num_queries` queries of `num_heads` heads each.

    Args:
        dtype: of what is multiplied.
        is_shared: queries that lie beside each other may share a tile. The order of sums over
            heads depends on it, and on nothing else of the batch.
        is_decoded: keys are records with several scales, which take registers to decode.
    """
    is_wide = dtype == "float32"
    heads = max(MIN_TILE, power_of_2(num_heads))
    queries = max(1, MAX_ROWS // heads) if is_shared and not is_wide else 1
    tiles = -(-num_queries // queries)
    return ScoresLaunch(
        queries=queries,
        heads=heads,
        keys=32 if is_wide or is_decoded else 128,
        dims=max(MIN_TILE, power_of_2(head_dim)),
        num_shares=max(1, min(MAX_SHARES, 2 * NUM_PROCESSORS // max(1, tiles))),
        num_warps=4 if queries * heads < MAX_ROWS else 8,
        num_stages=2 if is_wide else 3,
    )


def pick_block(num_scores: int) -> int:
    """How many scores a program looks at together."""
    return min(MAX_PICK_BLOCK, max(MIN_TILE, power_of_2(num_scores)))
