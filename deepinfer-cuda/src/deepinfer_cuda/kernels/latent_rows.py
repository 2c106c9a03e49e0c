"""From projected latents to the cache in one kernel: a program has one latent of a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _normalised(x_ptr, weight_ptr, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    dims = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + dims, mask=dims < SIZE, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + dims, mask=dims < SIZE, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    # Rounded as the ops that this one stands for round.
    unit = (x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)).to(dtype).to(tl.float32)
    return (unit * weight).to(dtype)


@triton.jit
def latents_kernel(
    row_ptr,
    q_ptr,
    q_out_ptr,
    cache_ptr,
    positions_ptr,
    table_ptr,
    slots_ptr,
    weight_ptr,
    q_weight_ptr,
    row_stride,
    q_stride,
    block_stride,
    block_size,
    eps,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    Q_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    HALF: tl.constexpr,
    Q_RANKS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 1:
        dims = tl.arange(0, Q_RANKS)
        q = _normalised(q_ptr + token * q_stride, q_weight_ptr, eps, Q_RANK, Q_RANKS)
        tl.store(q_out_ptr + token * Q_RANK + dims, q, mask=dims < Q_RANK)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        if slot >= 0:
            row = row_ptr + token * row_stride
            target = cache_ptr + slot // block_size * block_stride
            target += slot % block_size * (RANK + ROPE)
            dims = tl.arange(0, RANKS)
            c = _normalised(row, weight_ptr, eps, RANK, RANKS)
            tl.store(target + dims, c, mask=dims < RANK)
            pairs = tl.arange(0, HALF)
            is_pair = pairs < ROPE // 2
            if INTERLEAVED:
                first, second = 2 * pairs, 2 * pairs + 1
            else:
                first, second = pairs, pairs + ROPE // 2
            a = tl.load(row + RANK + first, mask=is_pair, other=0.0).to(tl.float32)
            b = tl.load(row + RANK + second, mask=is_pair, other=0.0).to(tl.float32)
            angles = table_ptr + tl.load(positions_ptr + token) * ROPE
            cos = tl.load(angles + pairs, mask=is_pair, other=0.0)
            sin = tl.load(angles + ROPE // 2 + pairs, mask=is_pair, other=0.0)
            dtype = row_ptr.dtype.element_ty
            tl.store(target + RANK + first, (a * cos - b * sin).to(dtype), mask=is_pair)
            tl.store(target + RANK + second, (b * cos + a * sin).to(dtype), mask=is_pair)


def latents(
    row: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    weight: Tensor,
    eps: float,
    layout: str = "half",
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
) -> Tensor | None:
    """See `deepinfer_core.ops.specs.attn.latents`."""
    q_out = None if q is None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_tokens, rank, rope_dim = len(row), len(weight), cos_sin.shape[1]
    q_rank = 0 if q is None else q.shape[1]
    if not num_tokens:
        return q_out
    latents_kernel[(num_tokens, 1 if q is None else 2)](
        row,
        row if q is None else q,
        row if q_out is None else q_out,
        cache,
        positions,
        cos_sin,
        slot_mapping,
        weight,
        weight if q_weight is None else q_weight,
        row.stride(0),
        0 if q is None else q.stride(0),
        cache.stride(0),
        cache.shape[1],
        eps,
        RANK=rank,
        ROPE=rope_dim,
        Q_RANK=max(1, q_rank),
        RANKS=triton.next_power_of_2(rank),
        HALF=triton.next_power_of_2(rope_dim // 2),
        Q_RANKS=triton.next_power_of_2(max(1, q_rank)),
        INTERLEAVED=layout == "interleaved",
        num_warps=2,
    )
    return q_out
