"""From projected heads to queries and the cache in one kernel: a program has a head of a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype = qkv_ptr.dtype.element_ty
    source = qkv_ptr + token * token_stride + head * HEAD_DIM
    is_query = head < num_q_heads
    is_value = head >= num_q_heads + num_kv_heads
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0 and not is_query:
        return
    pairs = tl.arange(0, HALF)
    is_pair = pairs < ROTARY_DIM // 2
    if INTERLEAVED:
        first, second = 2 * pairs, 2 * pairs + 1
    else:
        first, second = pairs, pairs + ROTARY_DIM // 2
    rest = ROTARY_DIM + tl.arange(0, REST)
    is_rest = rest < HEAD_DIM
    a = tl.load(source + first, mask=is_pair, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=is_pair, other=0.0).to(tl.float32)
    c = tl.load(source + rest, mask=is_rest, other=0.0).to(tl.float32)
    if not is_value:
        if HAS_NORM:
            square = tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)
            factor = tl.rsqrt(square / HEAD_DIM + eps)
            weight_ptr = q_weight_ptr if is_query else k_weight_ptr
            wa = tl.load(weight_ptr + first, mask=is_pair, other=0.0).to(tl.float32)
            wb = tl.load(weight_ptr + second, mask=is_pair, other=0.0).to(tl.float32)
            wc = tl.load(weight_ptr + rest, mask=is_rest, other=0.0).to(tl.float32)
            # Rounded as the ops that this one stands for round.
            a = ((a * factor).to(dtype).to(tl.float32) * wa).to(dtype).to(tl.float32)
            b = ((b * factor).to(dtype).to(tl.float32) * wb).to(dtype).to(tl.float32)
            c = ((c * factor).to(dtype).to(tl.float32) * wc).to(dtype).to(tl.float32)
        row = table_ptr + tl.load(positions_ptr + token) * ROTARY_DIM
        cos = tl.load(row + pairs, mask=is_pair, other=0.0)
        sin = tl.load(row + ROTARY_DIM // 2 + pairs, mask=is_pair, other=0.0)
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned
    if is_query:
        target = q_out_ptr + (token * num_q_heads + head) * HEAD_DIM
    else:
        place = (slot % block_size) * num_kv_heads * HEAD_DIM
        if is_value:
            kv_head = head - num_q_heads - num_kv_heads
            target = v_cache_ptr + slot // block_size * v_block_stride + place + kv_head * HEAD_DIM
        else:
            kv_head = head - num_q_heads
            target = k_cache_ptr + slot // block_size * k_block_stride + place + kv_head * HEAD_DIM
    tl.store(target + first, a.to(dtype), mask=is_pair)
    tl.store(target + second, b.to(dtype), mask=is_pair)
    tl.store(target + rest, c.to(dtype), mask=is_rest)


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
    _qkv_kernel[(num_tokens, num_heads)](
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
        REST=triton.next_power_of_2(max(1, head_dim - rotary_dim)),
        INTERLEAVED=layout == "interleaved",
        HAS_NORM=q_weight is not None,
        num_warps=1,
    )
    return q
