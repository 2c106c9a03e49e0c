"""Rotary embedding: a program rotates some heads of one token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS = 8
"""Of one program."""


@triton.jit
def _rotate(
    x_ptr,
    y_ptr,
    positions_ptr,
    table_ptr,
    token_stride,
    head_stride,
    num_heads,
    head_dim,
    rotary_dim,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = tl.load(positions_ptr + token)
    half = rotary_dim // 2
    pairs = tl.arange(0, PAIRS)
    is_pair = pairs < half
    row = table_ptr + position * rotary_dim
    cos = tl.load(row + pairs, mask=is_pair, other=0.0)[None, :]
    sin = tl.load(row + half + pairs, mask=is_pair, other=0.0)[None, :]
    if INVERSE:
        sin = -sin
    if INTERLEAVED:
        first, second = 2 * pairs, 2 * pairs + 1
    else:
        first, second = pairs, pairs + half
    source = x_ptr + token * token_stride + heads[:, None] * head_stride
    target = y_ptr + (token * num_heads + heads[:, None]) * head_dim
    mask = (heads < num_heads)[:, None] & is_pair[None, :]
    a = tl.load(source + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + second[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(target + first[None, :], (a * cos - b * sin).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(target + second[None, :], (b * cos + a * sin).to(y_ptr.dtype.element_ty), mask=mask)
    if REST > 0:
        rest = rotary_dim + tl.arange(0, REST)
        mask = (heads < num_heads)[:, None] & (rest < head_dim)[None, :]
        kept = tl.load(source + rest[None, :], mask=mask, other=0.0)
        tl.store(target + rest[None, :], kept, mask=mask)


def apply(
    q: Tensor,
    k: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    layout: str = "half",
    inverse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.rope.apply`."""
    rotated = [
        None if x is None else _apply(x, positions, cos_sin, layout == "interleaved", inverse)
        for x in (q, k)
    ]
    assert rotated[0] is not None
    return rotated[0], rotated[1]


def _apply(
    x: Tensor, positions: Tensor, cos_sin: Tensor, is_interleaved: bool, is_inverse: bool
) -> Tensor:
    num_tokens, num_heads, head_dim = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotary_dim = cos_sin.shape[1]
    rest = head_dim - rotary_dim
    x = x if x.stride(2) == 1 else x.contiguous()
    if y.numel():
        _rotate[(num_tokens, triton.cdiv(num_heads, HEADS))](
            x,
            y,
            positions,
            cos_sin,
            x.stride(0),
            x.stride(1),
            num_heads,
            head_dim,
            rotary_dim,
            INTERLEAVED=is_interleaved,
            INVERSE=is_inverse,
            HEADS=HEADS,
            PAIRS=triton.next_power_of_2(rotary_dim // 2),
            REST=triton.next_power_of_2(rest) if rest else 0,
        )
    return y
