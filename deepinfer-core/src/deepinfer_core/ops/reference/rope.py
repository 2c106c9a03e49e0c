"""Reference of the rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def apply(
    q: Tensor,
    k: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    layout: str = "half",
    inverse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.rope.apply`."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    sign = -1 if inverse else 1
    rotated_k = None if k is None else _rotate(k, cos, sin, layout, sign)
    return _rotate(q, cos, sin, layout, sign), rotated_k


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str, sign: int) -> Tensor:
    rotary_dim = 2 * cos.shape[-1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    out = torch.empty_like(wide, memory_format=torch.contiguous_format)
    (a, b), (out_a, out_b) = (_pairs(t, rotary_dim, layout) for t in (wide, out))
    torch.mul(a, cos, out=out_a)
    out_a.addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=out_b)
    out_b.addcmul_(a, sin, value=sign)
    if rotary_dim < x.shape[-1]:
        out[..., rotary_dim:] = wide[..., rotary_dim:]
    return out.to(x.dtype)


def _pairs(x: Tensor, rotary_dim: int, layout: str) -> tuple[Tensor, Tensor]:
    """Views of the first and the second element of each pair."""
    if rotary_dim < x.shape[-1]:
        x = x[..., :rotary_dim]
    if layout == "half":
        first, second = x.chunk(2, dim=-1)
        return first, second
    return x[..., 0::2], x[..., 1::2]
