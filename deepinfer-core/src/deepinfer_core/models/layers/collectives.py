"""How layers that hold a share call the collectives; on one rank nothing is bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from deepinfer_core.ops.table import OpTable

Collective = Callable[[Tensor], Tensor]


def bind_sum(ops: OpTable, *, dtype: str, role: str) -> Collective | None:
    """What sums a tensor over the ranks of the mesh; it may overwrite its argument."""
    return _bind(ops, "comm.all_reduce", dtype, role)


def bind_gather(ops: OpTable, *, dtype: str, role: str) -> Collective | None:
    """What puts the columns of all ranks side by side: [L, N] -> [L, ranks * N]."""
    gather = _bind(ops, "comm.all_gather", dtype, role)
    if gather is None:
        return None
    return partial(_gather_columns, gather, ops.mesh.tp_size)


def _bind(ops: OpTable, op: str, dtype: str, role: str) -> Collective | None:
    group = ops.mesh.tp_group
    if ops.mesh.tp_size == 1:
        return None
    return partial(ops.bind(op, dtype=dtype, role=role), group=group)


def _gather_columns(gather: Collective, num_ranks: int, x: Tensor) -> Tensor:
    num_rows, num_columns = x.shape
    shares = gather(x).view(num_ranks, num_rows, num_columns)
    return shares.transpose(0, 1).reshape(num_rows, num_ranks * num_columns)
