"""Checks of what the plugin claims, in portions that processes can share out."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

from deepinfer_core.testing.checks import Check
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject

PLUGIN = "deepinfer_cuda.plugin"
FAR = "far"
"""Checks that take many gigabytes: no two at a time."""
NOT_INSTALLED = "is not installed"
"""What adapters say whose library is missing: of those nothing is claimed here."""


def run_checks(level: str, share: int, num_shares: int, wanted: str = "") -> dict[str, Any]:
    """Run the checks of one share of a level; level `far` has those that take much memory.

    Args:
        wanted: run only checks whose id contains it.
    """
    checks = checks_of(level, wanted)
    begin, end = (len(checks) * place // num_shares for place in (share, share + 1))
    failed, absent = {}, 0
    for check in checks[begin:end]:
        result = run_check(check)
        gc.collect(0)
        if result.outcome == "passed":
            continue
        if NOT_INSTALLED in result.message:
            absent += 1
        else:
            failed[check.id] = f"{result.outcome}: {result.message}"
    counts = {"checks": end - begin - absent, "of libraries that are not installed": absent}
    return {"passed": not failed, "counts": counts, "failed": failed}


def checks_of(level: str, wanted: str) -> list[Check]:
    return [
        check
        for check in _all_checks()
        if level == (FAR if check.name == FAR else check.level) and wanted in check.id
    ]


@cache
def _all_checks() -> list[Check]:
    return list(all_checks(find_subject(PLUGIN), ("L0", "L1", "L2")))
