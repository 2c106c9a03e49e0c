"""Checks of what the plugin claims, in portions that processes can share out."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

from deepinfer_core.ops.registry import caps_refusal, op_name
from deepinfer_core.plugin_api import DeviceInfo, KernelSpec, Problem
from deepinfer_core.testing.checks import Check
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject

PLUGIN = "deepinfer_cuda.plugin"
FAR = "far"
"""Checks that take many gigabytes: no two at a time."""
NOT_INSTALLED = "is not installed"
"""What adapters say whose library is missing: of those nothing is claimed."""


def run_checks(level: str, share: int, num_shares: int, wanted: str = "") -> dict[str, Any]:
    """Run the checks of one share of a level; level `far` has those that take much memory.

    Args:
        wanted: run only checks whose id contains it.
    """
    checks = checks_of(level, wanted)
    begin, end = (len(checks) * place // num_shares for place in (share, share + 1))
    failed, refusals = {}, Counter[str]()
    for check in checks[begin:end]:
        result = run_check(check)
        gc.collect(0)
        if result.outcome == "refused" or NOT_INSTALLED in result.message:
            refusals[result.message] += 1
        elif result.outcome != "passed":
            failed[check.id] = f"{result.outcome}: {result.message}"
    refused = refusals.total()
    counts = {"checks": end - begin - refused, "refused": refused, "failed": len(failed)}
    return {"passed": not failed, "counts": counts, "failed": failed, "refusals": dict(refusals)}


def checks_of(level: str, wanted: str) -> list[Check]:
    return [
        check
        for check in _all_checks()
        if level == (FAR if check.name == FAR else check.level) and wanted in check.id
    ]


@cache
def _all_checks() -> list[Check]:
    """Of kernels for this GPU. That each claim is served in some case is one of them."""
    subject = find_subject(PLUGIN)
    kernels = [kernel for kernel in subject.kernels if _is_for(kernel, subject.device)]
    return list(all_checks(replace(subject, kernels=kernels), ("L0", "L1", "L2")))


def _is_for(kernel: KernelSpec, device: DeviceInfo) -> bool:
    plain = Problem(op_name(kernel.op), kernel.caps.dtypes[0])
    return caps_refusal(kernel.caps, plain, device) is None
