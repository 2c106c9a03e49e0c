"""From projected heads to queries and the cache in one kernel: a program has heads of a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

HEADS = 8
"""Of one program. INVARIANT: the same for any batch, since it is in the order of a norm's sums."""


@triton.jit
def _qkv_kernel(
    qkv_ptr,
    q_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    positions_ptr,
    table_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    token_stride,
    num_q_heads,
    num_kv_heads,
    k_block_stride,
    v_block_stride,
    block_size,
    eps,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dtype = qkv_ptr.dtype.element_ty
    slot = tl.load(slots_ptr + token).to(tl.int64)
    is_query = heads < num_q_heads
    is_value = heads >= num_q_heads + num_kv_heads
    is_head = heads < num_q_heads + 2 * num_kv_heads
    pairs = tl.arange(0, HALF)
    is_pair = pairs < ROTARY_DIM // 2
    if INTERLEAVED:
        first, second = 2 * pairs, 2 * pairs + 1
    else:
        first, second = pairs, pairs + ROTARY_DIM // 2
    source = (qkv_ptr + token * token_stride + heads * HEAD_DIM)[:, None]
    mask = is_head[:, None] & is_pair[None, :]
    a = tl.load(source + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + second[None, :], mask=mask, other=0.0).to(tl.float32)
    own_a, own_b = a, b
    if REST > 0:
        rest = ROTARY_DIM + tl.arange(0, REST)
        is_rest = rest < HEAD_DIM
        rest_mask = is_head[:, None] & is_rest[None, :]
        c = tl.load(source + rest[None, :], mask=rest_mask, other=0.0).to(tl.float32)
        own_c = c
    if HAS_NORM:
        square = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        if REST > 0:
            square += tl.sum(c * c, axis=1)
        factor = tl.rsqrt(square / HEAD_DIM + eps)[:, None]
        weight = tl.where(is_query, q_weight_ptr, k_weight_ptr)[:, None]
        wa = tl.load(weight + first[None, :], mask=mask, other=0.0).to(tl.float32)
        wb = tl.load(weight + second[None, :], mask=mask, other=0.0).to(tl.float32)
        # Rounded as the ops that this one stands for round.
        a = ((a * factor).to(dtype).to(tl.float32) * wa).to(dtype).to(tl.float32)
        b = ((b * factor).to(dtype).to(tl.float32) * wb).to(dtype).to(tl.float32)
        if REST > 0:
            wc = tl.load(weight + rest[None, :], mask=rest_mask, other=0.0).to(tl.float32)
            c = ((c * factor).to(dtype).to(tl.float32) * wc).to(dtype).to(tl.float32)
    row = table_ptr + tl.load(positions_ptr + token) * ROTARY_DIM
    cos = tl.load(row + pairs, mask=is_pair, other=0.0)[None, :]
    sin = tl.load(row + ROTARY_DIM // 2 + pairs, mask=is_pair, other=0.0)[None, :]
    turned = a * cos - b * sin
    b = b * cos + a * sin
    stays = is_value[:, None]
    a = tl.where(stays, own_a, turned)
    b = tl.where(stays, own_b, b)
    place = slot % block_size * num_kv_heads * HEAD_DIM
    k_place = k_cache_ptr + slot // block_size * k_block_stride + place
    v_place = v_cache_ptr + slot // block_size * v_block_stride + place
    k_target = k_place + (heads - num_q_heads) * HEAD_DIM
    v_target = v_place + (heads - num_q_heads - num_kv_heads) * HEAD_DIM
    target = q_out_ptr + (token * num_q_heads + heads) * HEAD_DIM
    target = tl.where(is_query, target, tl.where(is_value, v_target, k_target))[:, None]
    goes = tl.where(slot >= 0, is_head, is_query)[:, None]
    tl.store(target + first[None, :], a.to(dtype), mask=mask & goes)
    tl.store(target + second[None, :], b.to(dtype), mask=mask & goes)
    if REST > 0:
        c = tl.where(stays, own_c, c)
        tl.store(target + rest[None, :], c.to(dtype), mask=rest_mask & goes)


def qkv(
    qkv: Tensor,
    num_q_heads: int,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    layout: str = "half",
) -> Tensor:
    """See `deepinfer_core.ops.specs.attn.qkv`."""
    num_tokens, num_heads, head_dim = qkv.shape
    q = torch.empty((num_tokens, num_q_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if not num_tokens:
        return q
    rotary_dim = cos_sin.shape[1]
    rest = head_dim - rotary_dim
    _qkv_kernel[(num_tokens, triton.cdiv(num_heads, HEADS))](
        qkv,
        q,
        k_cache,
        v_cache,
        positions,
        cos_sin,
        slot_mapping,
        qkv if q_weight is None else q_weight,
        qkv if k_weight is None else k_weight,
        qkv.stride(0),
        num_q_heads,
        k_cache.shape[2],
        k_cache.stride(0),
        v_cache.stride(0),
        k_cache.shape[1],
        eps,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        HALF=triton.next_power_of_2(rotary_dim // 2),
        REST=triton.next_power_of_2(rest) if rest else 0,
        HEADS=HEADS,
        INTERLEAVED=layout == "interleaved",
        HAS_NORM=q_weight is not None,
        num_warps=2,
        **overlap(qkv.device),
    )
    return q
