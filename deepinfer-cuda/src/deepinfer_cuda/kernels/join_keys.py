"""Keys of expanded latent attention: each head's own part and the rotated one, which all share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32
"""Of a program, of one head."""


@triton.jit
def _join_kernel(
    kv_ptr,
    rope_ptr,
    keys_ptr,
    num_tokens,
    kv_token_stride,
    kv_head_stride,
    rope_token_stride,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    NOPES: tl.constexpr,
    ROPES: tl.constexpr,
    TOKENS: tl.constexpr,
):
    # Programs of one head's neighbours read the same rotated keys.
    head = tl.program_id(0)
    tokens = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    is_token = (tokens < num_tokens)[:, None]
    nopes, ropes = tl.arange(0, NOPES)[None, :], tl.arange(0, ROPES)[None, :]
    kv = kv_ptr + tokens[:, None] * kv_token_stride + head * kv_head_stride
    nope = tl.load(kv + nopes, mask=is_token & (nopes < NOPE), other=0.0)
    place = rope_ptr + tokens[:, None] * rope_token_stride
    rope = tl.load(place + ropes, mask=is_token & (ropes < ROPE), other=0.0)
    keys = keys_ptr + (tokens * tl.num_programs(0) + head)[:, None] * (NOPE + ROPE)
    tl.store(keys + nopes, nope, mask=is_token & (nopes < NOPE))
    tl.store(keys + NOPE + ropes, rope, mask=is_token & (ropes < ROPE))


def join_keys(kv: Tensor, rope: Tensor, nope_dim: int) -> Tensor:
    """[N, H, >= nope_dim] and [N, Dr] -> [N, H, nope_dim + Dr]."""
    num_tokens, num_heads, _ = kv.shape
    rope_dim = rope.shape[1]
    keys = torch.empty(
        (num_tokens, num_heads, nope_dim + rope_dim), dtype=kv.dtype, device=kv.device
    )
    _join_kernel[(num_heads, triton.cdiv(num_tokens, TOKENS))](
        kv,
        rope,
        keys,
        num_tokens,
        kv.stride(0),
        kv.stride(1),
        rope.stride(0),
        NOPE=nope_dim,
        ROPE=rope_dim,
        NOPES=triton.next_power_of_2(nope_dim),
        ROPES=triton.next_power_of_2(rope_dim),
        TOKENS=TOKENS,
        num_warps=4,
    )
    return keys
