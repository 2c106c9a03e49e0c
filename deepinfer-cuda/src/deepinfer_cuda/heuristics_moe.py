"""Launch configurations of the experts, as pure functions of shapes. No torch, no Triton."""

from __future__ import annotations

from dataclasses import dataclass, replace

PLAIN = "plain"
"""The scheme of weights that are numbers."""
DESCRIBED = (PLAIN, "fp8_block128")
"""Schemes whose weights are multiplied as they are copied."""


@dataclass(frozen=True, slots=True)
class ProductLaunch:
    """Of one of the two products of the experts.

    `columns` outputs of `rows` tokens per program, `depth` inputs at a time. `swap` lets the
    weights be the left operand, whose 64 rows a matrix unit wants, where tokens are few.
    `is_described`: weights are copied by descriptor, where the device can.
    """

    rows: int
    columns: int
    depth: int
    swap: bool
    is_described: bool
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class ExpertsLaunch:
    """Both products have the same rows to a tile, for tiles are laid out once."""

    up: ProductLaunch
    down: ProductLaunch
    rounds: bool = False
    """Rows become codes, as the weights are."""


def max_tiles(num_slots: int, num_experts: int, rows: int) -> int:
    """Most tiles that pairs of a token and an expert can fill, each tile being one expert's."""
    if num_slots <= num_experts:
        return num_slots
    return num_experts + (num_slots - num_experts) // rows


def experts_launch(
    num_slots: int, num_experts: int, size: int, dtype: str, scheme: str
) -> ExpertsLaunch:
    """For `num_slots` pairs of a token and an expert with `size` features.

    Args:
        scheme: of the weights.
    """
    per_expert = num_slots / num_experts
    is_described = scheme in DESCRIBED
    depth = 64 if scheme == PLAIN else 128
    if dtype == "float32":
        tile = _float32_tile(16 if per_expert <= 8 else 32, is_described)
    elif per_expert <= 8:
        tile = ProductLaunch(16, 64, depth, True, is_described, 4, 4)
    elif per_expert <= 64:
        tile = ProductLaunch(64, 64, depth, False, is_described, 4, 3)
    else:
        tile = ProductLaunch(128, 64, depth, False, is_described, 8, 3)
    return _for_both(tile, size)


def rounded_launch(
    num_slots: int, num_experts: int, size: int, dtype: str, scheme: str
) -> ExpertsLaunch:
    """Where rows may be rounded: that pays where experts have many, else weights bound the time."""
    if num_slots / num_experts <= 8:
        return experts_launch(num_slots, num_experts, size, dtype, scheme)
    tile = ProductLaunch(128, 64, 128, False, True, 8, 3)
    return replace(_for_both(tile, size), rounds=True)


def invariant_launch(
    num_slots: int, num_experts: int, size: int, dtype: str, scheme: str
) -> ExpertsLaunch:
    """The same for any number of tokens, so that a row is multiplied in the same order."""
    del num_slots, num_experts
    is_described = scheme in DESCRIBED
    if dtype == "float32":
        return _for_both(_float32_tile(32, is_described), size)
    depth = 64 if scheme == PLAIN else 128
    return _for_both(ProductLaunch(64, 64, depth, False, is_described, 4, 3), size)


def _float32_tile(rows: int, is_described: bool) -> ProductLaunch:
    return ProductLaunch(rows, 32, 32, False, is_described, 4, 2)


def _for_both(tile: ProductLaunch, size: int) -> ExpertsLaunch:
    """The first product has two weights to a column, the gate's and the other's."""
    columns = min(tile.columns, size & -size)  # which divides the size
    return ExpertsLaunch(replace(tile, columns=columns), replace(tile, columns=2 * tile.columns))
