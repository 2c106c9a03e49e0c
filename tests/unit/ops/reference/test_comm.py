"""Collectives over two real ranks; on one rank they are the identity."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from deepinfer_core.ops.reference import comm, invariant_comm

WORLD = 2


def contribution(rank):
    return torch.arange(8, dtype=torch.float32).view(4, 2) * (rank + 1)


def run_rank(rank, init_file):
    dist.init_process_group("gloo", f"file://{init_file}", rank=rank, world_size=WORLD)
    group, x = dist.group.WORLD, contribution(rank)
    every = [contribution(other) for other in range(WORLD)]
    total = sum(every)
    share = slice(2 * rank, 2 * rank + 2)
    for family in (comm, invariant_comm):
        assert torch.equal(family.all_reduce(x.clone(), group), total)
        assert torch.equal(family.reduce_scatter(x.clone(), group), total[share])
    assert torch.equal(comm.all_gather(x, group), torch.cat(every))
    assert torch.equal(comm.all_to_all(x, group), torch.cat([other[share] for other in every]))
    low = invariant_comm.all_reduce(x.to(torch.bfloat16), group)
    assert low.dtype == torch.bfloat16 and torch.equal(low.float(), total)
    dist.destroy_process_group()


def test_two_ranks(tmp_path):
    mp.spawn(run_rank, args=(tmp_path / "rendezvous",), nprocs=WORLD)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_one_rank(name):
    x = torch.randn(4, 3)
    assert torch.equal(getattr(comm, name)(x.clone()), x)
