"""The gated activation, a tile of a row per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

BLOCK = 1024


@triton.jit
def _silu_mul(
    x_ptr,
    y_ptr,
    x_stride,
    size,
    limit,
    HAS_LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_start(OVERLAP)
    wait_for_inputs(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    gate = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + size + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_LIMIT:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    gated = (gate / (1.0 + tl.exp(-gate))).to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(y_ptr + row * size + columns, (gated * up).to(y_ptr.dtype.element_ty), mask=mask)


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.act.silu_mul`."""
    num_rows, size = x.shape[0], x.shape[1] // 2
    y = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if y.numel():
        grid = (num_rows, triton.cdiv(size, BLOCK))
        _silu_mul[grid](
            x,
            y,
            x.stride(0),
            size,
            limit or 0.0,
            HAS_LIMIT=limit is not None,
            BLOCK=BLOCK,
            **overlap(x.device),
        )
    return y
