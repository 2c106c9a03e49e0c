"""Collectives that sum in order of rank, whatever the size of what is summed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from deepinfer_core.ops.reference.comm import all_gather, all_to_all, world_size


def all_reduce(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.all_reduce`."""
    world = world_size(group)
    return x if world == 1 else _sum_in_order(all_gather(x.unsqueeze(0), group))


def reduce_scatter(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.reduce_scatter`."""
    world = world_size(group)
    if world == 1:
        return x
    return _sum_in_order(all_to_all(x, group).view(world, x.shape[0] // world, *x.shape[1:]))


def _sum_in_order(shares: Tensor) -> Tensor:
    """Sum over the first axis, in float32 and in order."""
    total = shares[0].to(torch.promote_types(shares.dtype, torch.float32), copy=True)
    for share in shares[1:]:
        total += share
    return total.to(shares.dtype)
