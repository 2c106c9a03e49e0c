"""Batch metadata that attention and cache ops receive. Torch-free to import.

Device tensors hold the truth; the host lists beside them are exact for query lengths and upper
bounds for sequence lengths, so that planning never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.ops.bound import BoundOp


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step's batch as seen by the layers of one layout group.

    B requests, T packed tokens. Position p of request b lives in slot
    `block_tables[b, p // block_size] * block_size + p % block_size`.
    """

    cu_seqlens_q: Tensor
    """[B + 1] int32, leading zero."""
    seq_lens: Tensor
    """[B] int32, KV length visible after this step's write."""
    block_tables: Tensor
    """[B, max_blocks] int32; 0, the null block, pads and stands for blocks out of the window."""
    slot_mapping: Tensor
    """[T] int32; -1 = do not write."""
    positions: Tensor
    """[T] int64 absolute positions of the queries."""
    block_size: int
    query_lens: Sequence[int]
    """Host, exact, one per request."""
    seq_len_bounds: Sequence[int]
    """Host, at least `seq_lens`."""
    window_starts: Tensor | None = None
    """[B] int32: no window reads positions below; None: all there are. Set only for models that
    allow bounded replay, which find the rows of their windows through `ops.rows`."""
    plans: dict[str, Any] = field(default_factory=dict)
    """What layers share in a step: results of `KernelSpec.plan` by `BoundOp.plan_key`, and the
    lists of `ops.rows` by names of their own."""

    def plan_for(self, bound: BoundOp) -> object | None:
        """What the kernel's `plan` made of this batch; made by the first layer that asks."""
        if bound.plan_fn is None:
            return None
        plan = self.plans.get(bound.plan_key)
        if plan is None:
            plan = self.plans[bound.plan_key] = bound.plan_fn(bound.problem, self)
        return plan

    @property
    def num_reqs(self) -> int:
        return len(self.query_lens)

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens, default=0)

    @property
    def max_seq_len(self) -> int:
        """Upper bound, host."""
        return max(self.seq_len_bounds, default=0)
