"""Level 1: Every claimed dtype and feature gives the truth."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.testing.checks import Check

LEVEL = "L1"


def test_numerics(check: Check, prove: Callable[[Check], None]) -> None:
    prove(check)
