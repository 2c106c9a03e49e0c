"""References of the collectives, over torch.distributed."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def all_reduce(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.all_reduce`."""
    if world_size(group) > 1:
        dist.all_reduce(x, group=group)
    return x


def all_gather(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.all_gather`."""
    world = world_size(group)
    if world == 1:
        return x
    out = x.new_empty((world * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def reduce_scatter(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.reduce_scatter`."""
    world = world_size(group)
    if world == 1:
        return x
    out = x.new_empty((x.shape[0] // world, *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


def all_to_all(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.comm.all_to_all`."""
    if world_size(group) == 1:
        return x
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out


def world_size(group: ProcessGroup | None) -> int:
    """Ranks of a group; None is this rank alone."""
    return 1 if group is None else group.size()
