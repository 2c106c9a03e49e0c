"""Cases of the collectives on one rank, where each is the identity."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide


def comm_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case("one-rank", _identity)]


def _identity(make: Maker, num_tokens: int) -> Call:
    x = make.normal(num_tokens, 40)
    return Call({"x": x, "group": None}, [wide(x)], writes=frozenset({"x"}))


OPS = {
    f"comm.{name}": OpCases(comm_cases, rows=("x",))
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
}
