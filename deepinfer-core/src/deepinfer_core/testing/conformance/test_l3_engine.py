"""Level 3: Tiny models answer as with core's own kernels."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.testing.checks import Check

LEVEL = "L3"


def test_engine(check: Check, prove: Callable[[Check], None]) -> None:
    prove(check)
