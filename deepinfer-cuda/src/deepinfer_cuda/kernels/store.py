"""Writing keys and values into their slots: a program writes one token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _store(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_block_stride,
    v_block_stride,
    block_size,
    head_dim,
    width,
    HAS_VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    block, place = slot // block_size, slot % block_size
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    heads, dims = columns // head_dim, columns % head_dim
    k = tl.load(k_ptr + token * k_token_stride + heads * k_head_stride + dims, mask=mask)
    tl.store(k_cache_ptr + block * k_block_stride + place * width + columns, k, mask=mask)
    if HAS_VALUES:
        v = tl.load(v_ptr + token * v_token_stride + heads * v_head_stride + dims, mask=mask)
        tl.store(v_cache_ptr + block * v_block_stride + place * width + columns, v, mask=mask)


def store(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slot_mapping: Tensor,
    plan: object | None = None,
) -> None:
    """See `deepinfer_core.ops.specs.kv.store`."""
    num_tokens, num_heads, head_dim = k.shape
    if not k.numel():
        return
    k = k if k.stride(2) == 1 else k.contiguous()
    values = k if v is None else (v if v.stride(2) == 1 else v.contiguous())
    value_cache = k_cache if v_cache is None else v_cache
    width = num_heads * head_dim
    block = min(2048, triton.next_power_of_2(width))
    _store[(num_tokens, triton.cdiv(width, block))](
        k,
        values,
        k_cache,
        value_cache,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        values.stride(0),
        values.stride(1),
        k_cache.stride(0),
        value_cache.stride(0),
        k_cache.shape[1],
        head_dim,
        width,
        HAS_VALUES=v is not None,
        BLOCK=block,
    )
