"""Level 0: Imports, probe, versions and signatures."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.testing.checks import Check

LEVEL = "L0"


def test_hygiene(check: Check, prove: Callable[[Check], None]) -> None:
    prove(check)
