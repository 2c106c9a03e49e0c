"""Products with codes: weights that stay as checkpoints hold them, and rows that are rounded."""

from __future__ import annotations

from deepinfer_core.plugin_api import Problem, Reason

from deepinfer_cuda.claims.claim import INVARIANT, LAWS, OLDEST_E4M3, claim, since

WEIGHTS = ("fp8_block128", "fp8_block32", "mxfp4")
ROUGH = ("bfloat16", "float16")
"""What matrix units of 9.0 suffice for, which add products of e4m3 up with few bits."""
ROWS = (
    "int8_token",
    "fp8_token",
    "fp8_block128",
    "fp8_block128_ue8m0",
    "fp8_block32_ue8m0",
)


def may_round(problem: Problem) -> bool | Reason:
    """Whether the model bears rounded rows."""
    if "rounded_rows" in problem.features:
        return True
    return Reason("rounds rows to e4m3, which the problem does not permit")


KERNELS = tuple(
    since(OLDEST_E4M3, kernel)
    for kernel in (
        claim("gemm.coded", "coded_gemm:coded", "bias", laws=LAWS, schemes=WEIGHTS),
        claim(
            "gemm.coded",
            "coded_gemm:coded_invariant",
            "bias",
            laws=INVARIANT,
            schemes=WEIGHTS,
            provider="cuda.triton_invariant",
            priority=5,
        ),
        claim(
            "gemm.coded",
            "rounded_gemm:coded",
            *("bias", "rounded_rows"),
            laws=LAWS,
            dtypes=ROUGH,
            schemes=("fp8_block128",),
            supports=may_round,
            provider="cuda.triton_rounded",
            priority=11,
        ),
        claim("quant.act", "quant:act", schemes=ROWS),
        claim("gemm.scaled", "scaled_gemm:scaled", laws=LAWS, dtypes=ROUGH, schemes=ROWS),
    )
)
