"""Cases of the activation ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide

LIMIT = 1.25


def silu_mul_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for size in sizes.several("intermediate_size", 96, 33, 1536):
        shape = {"intermediate_size": size}
        cases.append(Case(f"ffn{size}", partial(_silu_mul, size, None), sizes=shape))
        limited = partial(_silu_mul, size, LIMIT)
        cases.append(Case(f"ffn{size}-limit", limited, frozenset({"limit"}), shape))
    return cases


def gated(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """silu(gate) * up in the dtype of the arguments."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / (1 + (-gate).exp()) * up


def _silu_mul(size: int, limit: float | None, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, 2 * size, scale=2.0)
    gate, up = wide(x).chunk(2, dim=-1)
    return Call({"x": x, "limit": limit}, [gated(gate, up, limit)])


OPS = {"act.silu_mul": OpCases(silu_mul_cases, rows=("x",))}
