"""Attention over two sets of keys as one, weighted by normalisers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.attend import LOG2_E

ROWS = 32
"""Queries of a program, of one head."""


@triton.jit
def _merge_kernel(
    o1_ptr,
    o2_ptr,
    lse1_ptr,
    lse2_ptr,
    o_ptr,
    lse_ptr,
    num_tokens,
    num_heads,
    o1_token_stride,
    o1_head_stride,
    o2_token_stride,
    o2_head_stride,
    lse1_token_stride,
    lse1_head_stride,
    lse2_token_stride,
    lse2_head_stride,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    is_token = tokens < num_tokens
    dims = tl.arange(0, DIMS)
    mask = is_token[:, None] & (dims < HEAD_DIM)[None, :]
    lse1 = tl.load(
        lse1_ptr + tokens * lse1_token_stride + head * lse1_head_stride,
        mask=is_token,
        other=float("-inf"),
    )
    lse2 = tl.load(
        lse2_ptr + tokens * lse2_token_stride + head * lse2_head_stride,
        mask=is_token,
        other=float("-inf"),
    )
    peak = tl.maximum(lse1, lse2)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    w1, w2 = tl.exp2((lse1 - base) * LOG2_E), tl.exp2((lse2 - base) * LOG2_E)
    total = w1 + w2
    factor = 1.0 / tl.where(total == 0.0, 1.0, total)
    place1 = tokens[:, None] * o1_token_stride + head * o1_head_stride + dims[None, :]
    place2 = tokens[:, None] * o2_token_stride + head * o2_head_stride + dims[None, :]
    o1 = tl.load(o1_ptr + place1, mask=mask, other=0.0).to(tl.float32)
    o2 = tl.load(o2_ptr + place2, mask=mask, other=0.0).to(tl.float32)
    o = o1 * (w1 * factor)[:, None] + o2 * (w2 * factor)[:, None]
    place = (tokens * num_heads + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(o_ptr + place, o.to(o_ptr.dtype.element_ty), mask=mask)
    if WANTS_LSE:
        tl.store(lse_ptr + tokens * num_heads + head, base + tl.log(total), mask=is_token)


def merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.merge`."""
    num_tokens, num_heads, _ = o1.shape
    o = torch.empty(o1.shape, dtype=o1.dtype, device=o1.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=o1.device)
    merge_into(o, lse, o1, lse1, o2, lse2)
    return o, lse


def merge_into(
    o: Tensor, lse: Tensor | None, o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor
) -> None:
    """As `merge`, into tensors that are contiguous."""
    num_tokens, num_heads, head_dim = o.shape
    if not num_tokens:
        return
    o1, o2 = (x if x.stride(2) == 1 else x.contiguous() for x in (o1, o2))
    _merge_kernel[(triton.cdiv(num_tokens, ROWS), num_heads)](
        o1,
        o2,
        lse1,
        lse2,
        o,
        lse1 if lse is None else lse,
        num_tokens,
        num_heads,
        o1.stride(0),
        o1.stride(1),
        o2.stride(0),
        o2.stride(1),
        lse1.stride(0),
        lse1.stride(1),
        lse2.stride(0),
        lse2.stride(1),
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        ROWS=ROWS,
        WANTS_LSE=lse is not None,
        num_warps=4,
    )
