"""Cases of the rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide

NUM_POSITIONS = 5000


def rope_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for head_dim, share in ((64, 1), (32, 2), (20, 1)):
        head_dim = sizes.pick("head_dim", head_dim)
        rotary_dim = sizes.pick("rotary_dim", head_dim // share // 2 * 2)
        for layout in ("half", "interleaved"):
            for inverse in (False, True):
                features = {"interleaved"} if layout == "interleaved" else set()
                features |= {"inverse"} if inverse else set()
                name = "-".join([f"dim{head_dim}of{rotary_dim}", *sorted(features)])
                build = partial(_rope, head_dim, rotary_dim, layout, inverse)
                shape = {"head_dim": head_dim, "rotary_dim": rotary_dim}
                cases.append(Case(name, build, frozenset(features), shape))
    return list({case.name: case for case in cases}.values())


def _rope(
    head_dim: int, rotary_dim: int, layout: str, inverse: bool, make: Maker, num_tokens: int
) -> Call:
    q = make.rows(num_tokens, 6, head_dim)
    # Some layers rotate their queries alone.
    k = make.rows(num_tokens, 2, head_dim) if num_tokens != 7 else None
    positions = make.integers(0, NUM_POSITIONS, num_tokens, dtype=torch.int64)
    rates = 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.arange(NUM_POSITIONS).unsqueeze(1) * rates
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).to(make.device)
    expected = [
        _rotate(wide(x), wide(cos_sin[positions]), layout, inverse) for x in (q, k) if x is not None
    ]
    kwargs = {
        "q": q,
        "k": k,
        "positions": positions,
        "cos_sin": cos_sin,
        "layout": layout,
        "inverse": inverse,
    }
    return Call(kwargs, expected)


def _rotate(x: Tensor, cos_sin: Tensor, layout: str, inverse: bool) -> Tensor:
    """Multiply pairs as complex numbers by cos + i sin."""
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    turn = torch.complex(cos, -sin if inverse else sin)
    rotary_dim = cos_sin.shape[-1]
    turned = x[..., :rotary_dim]
    if layout == "half":
        first, second = turned.chunk(2, dim=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    result = torch.complex(first.contiguous(), second.contiguous()) * turn
    joined = torch.cat if layout == "half" else _interleave
    return torch.cat([joined((result.real, result.imag), dim=-1), x[..., rotary_dim:]], dim=-1)


def _interleave(pair: tuple[Tensor, Tensor], dim: int) -> Tensor:
    return torch.stack(pair, dim=dim).flatten(-2)


OPS = {"rope.apply": OpCases(rope_cases, rows=("q", "k", "positions"))}
