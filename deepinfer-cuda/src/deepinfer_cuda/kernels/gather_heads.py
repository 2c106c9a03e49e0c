"""Keys and values of one request, gathered from the cache head by head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32
"""Of a program, of one head."""


@triton.jit
def _gather_kernel(
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    length,
    k_block_stride,
    v_block_stride,
    block_size,
    num_heads,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    # Programs that read the same tokens lie beside each other.
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(0)
    is_token = tokens < length
    dims = tl.arange(0, DIMS)
    mask = is_token[:, None] & (dims < HEAD_DIM)[None, :]
    block = tl.load(table_ptr + tokens // block_size, mask=is_token, other=0).to(tl.int64)
    inside = (tokens % block_size * num_heads + head) * HEAD_DIM
    k_place = (block * k_block_stride + inside)[:, None] + dims[None, :]
    v_place = (block * v_block_stride + inside)[:, None] + dims[None, :]
    place = (head.to(tl.int64) * length + tokens)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(keys_ptr + place, tl.load(k_ptr + k_place, mask=mask, other=0.0), mask=mask)
    tl.store(values_ptr + place, tl.load(v_ptr + v_place, mask=mask, other=0.0), mask=mask)


def gather_heads(
    k_cache: Tensor, v_cache: Tensor, table: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Keys and values [Hk, length, D] of the blocks in this row of a table."""
    _, block_size, num_heads, head_dim = k_cache.shape
    shape = (num_heads, length, head_dim)
    keys, values = (
        torch.empty(shape, dtype=cache.dtype, device=cache.device) for cache in (k_cache, v_cache)
    )
    _gather_kernel[(num_heads, triton.cdiv(length, TOKENS))](
        k_cache,
        v_cache,
        keys,
        values,
        table,
        length,
        k_cache.stride(0),
        v_cache.stride(0),
        block_size,
        num_heads,
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        TOKENS=TOKENS,
        num_warps=4,
    )
    return keys, values
