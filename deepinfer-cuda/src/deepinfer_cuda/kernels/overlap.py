"""Kernels that start while the one before them ends (programmatic dependent launch, 9.0 and up).

A kernel of this package calls `let_next_start` first and `wait_for_inputs` before it touches
anything that another kernel writes. INVARIANT: each program of a kernel that lets the next one
start also waits, so that whatever completes has everything before it completed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

OLDEST = (9, 0)


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()


@triton.jit
def prefetch(pointers):
    """Bring the 1,024 bytes behind each pointer, which is a multiple of 16, into the L2 cache."""
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], 1024; mov.u32 $0, 0; }",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@cache
def overlap(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch: whether it overlaps with the kernel before it."""
    if device.type == "cpu":  # Triton's interpreter
        return {"OVERLAP": False}
    can = torch.cuda.get_device_capability(device) >= OLDEST
    return {"OVERLAP": True, "launch_pdl": True} if can else {"OVERLAP": False}
