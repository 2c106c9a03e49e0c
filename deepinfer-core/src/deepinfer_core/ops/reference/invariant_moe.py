"""The experts, with bits of a row that do not depend on which rows share its experts."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.ops.reference.codes import decode_weight
from deepinfer_core.ops.reference.invariant_act import silu_mul
from deepinfer_core.ops.reference.invariant_gemm import dense
from deepinfer_core.ops.reference.moe import run_experts


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w2: Tensor,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.moe.experts`."""

    def feed_forward(rows: Tensor, expert: int) -> Tensor:
        return dense(silu_mul(dense(rows, w13[expert]), limit), w2[expert])

    return run_experts(feed_forward, x, ids, weights, w13.shape[0], expert_map)


def coded(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w13_scales: Tensor,
    w2: Tensor,
    w2_scales: Tensor,
    scheme: str,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.moe.coded`."""

    def feed_forward(rows: Tensor, expert: int) -> Tensor:
        up = decode_weight(w13[expert], w13_scales[expert], scheme, x.dtype)
        hidden = silu_mul(dense(rows, up), limit)
        return dense(hidden, decode_weight(w2[expert], w2_scales[expert], scheme, x.dtype))

    return run_experts(feed_forward, x, ids, weights, w13.shape[0], expert_map)
