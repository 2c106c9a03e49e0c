"""Other libraries' kernels. Behind our own in rank, since none was ever run: name one to have it.

Whether a library is there is asked without importing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from deepinfer_core.plugin_api import Caps, KernelSpec, Problem, Reason

from deepinfer_cuda.claims.coded import may_round
from deepinfer_cuda.probe import KIND

PACKAGE = "deepinfer_cuda.kernels.adapters"
PRIORITY = 3
HOPPER = ("9.0", "9.0")
Supports = Callable[[Problem], bool | Reason]


def installed(module: str, remedy: str) -> Supports:
    """Whether a library is there; if not, how to get it."""

    def supports(problem: Problem) -> bool | Reason:
        if find_spec(module) is not None:
            return True
        return Reason(f"{module} is not installed; {remedy}")

    return supports


def all_of(*questions: Supports) -> Supports:
    """The first reason against."""

    def supports(problem: Problem) -> bool | Reason:
        return next((no for question in questions if not (no := question(problem))), True)

    return supports


def fits_blocks(problem: Problem) -> bool | Reason:
    """Whether DeepGEMM can copy rows of such a product."""
    inputs, outputs = problem.dim("in_features") or 0, problem.dim("out_features") or 0
    if inputs % 128 == 0 and outputs % 8 == 0:
        return True
    return Reason(f"wants multiples of 128 inputs and of 8 outputs, not {inputs} and {outputs}")


_FLASHINFER = installed("flashinfer", "pip install flashinfer-python")
_DEEP_GEMM = installed("deep_gemm", "build it from github.com/deepseek-ai/DeepGEMM")
_FLASH_MLA = installed("flash_mla", "build it from github.com/deepseek-ai/FlashMLA")
_CODED_CAPS = Caps(
    device_kinds=(KIND,), arch=HOPPER, dtypes=("bfloat16",), schemes=("fp8_block128",)
)

KERNELS = (
    KernelSpec(
        op="attn.paged@1",
        provider="cuda.flashinfer",
        target=f"{PACKAGE}.flashinfer:paged",
        plan=f"{PACKAGE}.flashinfer:plan",
        caps=Caps(
            device_kinds=(KIND,),
            arch=("8.0", None),
            dtypes=("bfloat16", "float16"),
            dims={"head_dim": (64, 128, 256)},
            features=frozenset({"varlen", "window", "lse_out", "strided_cache"}),
        ),
        supports=_FLASHINFER,
        priority=PRIORITY,
    ),
    KernelSpec(
        op="attn.mla@1",
        provider="cuda.flash_mla",
        target=f"{PACKAGE}.flash_mla:mla",
        plan=f"{PACKAGE}.flash_mla:plan",
        caps=Caps(
            device_kinds=(KIND,),
            arch=HOPPER,
            dtypes=("bfloat16",),
            dims={"kv_rank": (512,), "rope_head_dim": (64,)},
            features=frozenset({"varlen", "lse_out", "strided_cache"}),
        ),
        supports=_FLASH_MLA,
        priority=PRIORITY,
    ),
    KernelSpec(
        op="gemm.scaled@1",
        provider="cuda.deep_gemm",
        target=f"{PACKAGE}.deep_gemm:scaled",
        caps=_CODED_CAPS,
        supports=_DEEP_GEMM,
        priority=PRIORITY,
    ),
    KernelSpec(
        op="gemm.coded@1",
        provider="cuda.deep_gemm",
        target=f"{PACKAGE}.deep_gemm:coded",
        caps=replace(_CODED_CAPS, features=frozenset({"bias", "rounded_rows"})),
        supports=all_of(_DEEP_GEMM, may_round, fits_blocks),
        priority=PRIORITY,
    ),
)
