"""Level 2: What a kernel may not do, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.testing.checks import Check

LEVEL = "L2"


def test_laws(check: Check, prove: Callable[[Check], None]) -> None:
    prove(check)
