"""Specs of the collectives. On one rank each is the identity and may return its argument."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@op("comm.all_reduce", major=1, tier=0)
def all_reduce(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Sum over the ranks of a group; every rank gets the sum.

    Args:
        x: any shape, equal on all ranks, contiguous. It may be overwritten: use the result.
        group: the ranks; None = this rank alone.

    Returns:
        The sum, in the shape and dtype of x.
    """


@op("comm.all_gather", major=1, tier=0)
def all_gather(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Concatenate the rows of all ranks of a group, in order of rank.

    Args:
        x: [T, ...], equal shapes on all ranks.
        group: the ranks; None = this rank alone.

    Returns:
        [world * T, ...].
    """


@op("comm.reduce_scatter", major=1, tier=0)
def reduce_scatter(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Sum over the ranks of a group; each rank gets its share of the rows.

    Args:
        x: [world * T, ...], equal shapes on all ranks.
        group: the ranks; None = this rank alone.

    Returns:
        [T, ...], rows rank * T and on of the sum.
    """


@op("comm.all_to_all", major=1, tier=0)
def all_to_all(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Send the r-th share of the rows to rank r; get one share from each, in order of rank.

    Args:
        x: [world * T, ...], equal shapes on all ranks.
        group: the ranks; None = this rank alone.

    Returns:
        [world * T, ...].
    """
