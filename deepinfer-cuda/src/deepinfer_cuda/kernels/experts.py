"""The experts: tiles of each expert's tokens, two products over them, and the sum per token.

Whatever lies between the kernels is in the order of slots (see `expert_tiles`), so that a sum
reads its terms in order and needs no atomics.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.heuristics_moe import (
    PLAIN,
    ExpertsLaunch,
    experts_launch,
    invariant_launch,
    rounded_launch,
)
from deepinfer_cuda.heuristics_skinny import MAX_SLOTS_PER_EXPERT, ROWS, SkinnyLaunch
from deepinfer_cuda.kernels import skinny
from deepinfer_cuda.kernels.expert_product import Matrices, multiply
from deepinfer_cuda.kernels.expert_tiles import lay_out
from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs
from deepinfer_cuda.kernels.quant import act

SCHEMES = ("fp8_block128", "fp8_block32", "mxfp4")
ROUNDING = "fp8_block128"
"""Of rows, as `quant.act` does it."""
SUM_BLOCK = 1024
ChooseLaunch = Callable[[int, int, int, str, str], ExpertsLaunch]
"""From slots, experts, features, dtype and scheme."""


@triton.jit
def sum_kernel(
    rows_ptr,
    ids_ptr,
    map_ptr,
    weights_ptr,
    y_ptr,
    size,
    TOP_K: tl.constexpr,
    HAS_MAP: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOP_K):
        slot = token * TOP_K + k
        bound = size
        if HAS_MAP:
            bound = tl.where(tl.load(map_ptr + tl.load(ids_ptr + slot)) >= 0, size, 0)
        row = tl.load(rows_ptr + slot * size + columns, mask=columns < bound, other=0.0)
        total += row.to(tl.float32) * tl.load(weights_ptr + slot)
    tl.store(y_ptr + token * size + columns, total.to(y_ptr.dtype.element_ty), mask=columns < size)


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
    matrices = Matrices(w13), Matrices(w2)
    return _run(x, ids, weights, matrices, limit, expert_map, experts_launch)


def experts_invariant(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w2: Tensor,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.moe.experts`. Tiles are of one size for any batch."""
    matrices = Matrices(w13), Matrices(w2)
    return _run(x, ids, weights, matrices, limit, expert_map, invariant_launch)


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
    matrices = _codes(scheme, (w13, w13_scales), (w2, w2_scales))
    return _run(x, ids, weights, matrices, limit, expert_map, experts_launch)


def coded_invariant(
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
    """See `deepinfer_core.ops.specs.moe.coded`. Tiles are of one size for any batch."""
    matrices = _codes(scheme, (w13, w13_scales), (w2, w2_scales))
    return _run(x, ids, weights, matrices, limit, expert_map, invariant_launch)


def coded_rounded(
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
    """See `deepinfer_core.ops.specs.moe.coded`. Rounds rows where experts have many."""
    matrices = _codes(scheme, (w13, w13_scales), (w2, w2_scales))
    return _run(x, ids, weights, matrices, limit, expert_map, rounded_launch)


def _codes(scheme: str, *pairs: tuple[Tensor, Tensor]) -> tuple[Matrices, ...]:
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme {scheme!r} of weights; known: {', '.join(SCHEMES)}")
    return tuple(Matrices(codes, scales, scheme) for codes, scales in pairs)


def _run(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    matrices: tuple[Matrices, ...],
    limit: float | None,
    expert_map: Tensor | None,
    choose_launch: ChooseLaunch,
) -> Tensor:
    (num_tokens, hidden_size), top_k = x.shape, ids.shape[1]
    y = torch.empty((num_tokens, hidden_size), dtype=x.dtype, device=x.device)
    if not num_tokens:
        return y
    up, down = matrices
    ids, weights = ids.contiguous(), weights.contiguous()
    num_experts, size = up.codes.shape[0], up.codes.shape[1] // 2
    dtype = str(x.dtype).removeprefix("torch.")
    gated = torch.empty((ids.numel(), size), dtype=x.dtype, device=x.device)
    rows = torch.empty((ids.numel(), hidden_size), dtype=y.dtype, device=x.device)
    few = None if choose_launch is invariant_launch else _for_few_slots(x, gated, matrices)
    if few is not None:
        tiles = lay_out(ids, expert_map, num_experts, ROWS)
        skinny.multiply_slots(x, _weights(up), tiles, gated, few[0], top_k=top_k, limit=limit)
        skinny.multiply_slots(gated, _weights(down), tiles, rows, few[1])
    else:
        launch = choose_launch(ids.numel(), num_experts, size, dtype, up.scheme)
        tiles = lay_out(ids, expert_map, num_experts, launch.up.rows)
        x, scales = _rounded(x, launch)
        multiply(x, up, tiles, gated, launch.up, scales, top_k=top_k, is_gated=True, limit=limit)
        gated, scales = _rounded(gated, launch)
        multiply(gated, down, tiles, rows, launch.down, scales)
    sum_kernel[(num_tokens, triton.cdiv(hidden_size, SUM_BLOCK))](
        rows,
        ids,
        ids if expert_map is None else expert_map,
        weights,
        y,
        hidden_size,
        TOP_K=top_k,
        HAS_MAP=expert_map is not None,
        BLOCK=SUM_BLOCK,
        **overlap(x.device),
    )
    return y


def _for_few_slots(
    x: Tensor, gated: Tensor, matrices: tuple[Matrices, ...]
) -> tuple[SkinnyLaunch, SkinnyLaunch] | None:
    """How the kernel for few rows runs both products; None: others are quicker, or it cannot."""
    up, down = matrices
    if len(gated) > MAX_SLOTS_PER_EXPERT * len(up.codes):
        return None
    if up.scheme not in (PLAIN, skinny.SCHEME):
        return None
    first = skinny.launch_for(x, _weights(up), ROWS)
    second = skinny.launch_for(gated, _weights(down), ROWS)
    return None if first is None or second is None else (first, second)


def _weights(matrices: Matrices) -> skinny.Weights:
    return skinny.Weights(matrices.codes, matrices.scales)


def _rounded(x: Tensor, launch: ExpertsLaunch) -> tuple[Tensor, Tensor | None]:
    """Codes and scales of rows, if the launch is for such."""
    return act(x, ROUNDING) if launch.rounds else (x, None)
