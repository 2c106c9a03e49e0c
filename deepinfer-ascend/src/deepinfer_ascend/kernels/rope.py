"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

MODES = {"half": "half", "interleaved": "interleave"}


def apply(
    q: Tensor,
    k: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    layout: str = "half",
    inverse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.rope.apply`."""
    cos, sin = cos_sin.index_select(0, positions).chunk(2, dim=-1)
    if inverse:
        sin = -sin
    # LAYOUT: [1, T, 1, Dr]: one batch of T positions.
    factors = [_for_pairs(part, layout)[None, :, None, :] for part in (cos, sin)]
    return _rotate(q, factors, layout), None if k is None else _rotate(k, factors, layout)


def _for_pairs(part: Tensor, layout: str) -> Tensor:
    """One factor for each dimension instead of each pair."""
    return part.repeat(1, 2) if layout == "half" else part.repeat_interleave(2, dim=1)


def _rotate(x: Tensor, factors: list[Tensor], layout: str) -> Tensor:
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    rotary_dim = factors[0].shape[-1]
    # Factors in 16 bits would turn by an angle that is a little off, so rows are wide meanwhile.
    wide = x[..., :rotary_dim].float().contiguous().unsqueeze(0)
    turned = torch.ops.npu.npu_rotary_mul(wide, *factors, MODES[layout])[0].to(x.dtype)
    return turned if rotary_dim == x.shape[-1] else torch.cat([turned, x[..., rotary_dim:]], -1)
