"""Products with plain and with quantised weights."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec, Problem, Reason

from deepinfer_ascend.claims.claim import DTYPES, claim
from deepinfer_ascend.soc import Soc


def kernels(soc: Soc) -> list[KernelSpec]:
    schemes, products = ["int8_token"], ["int8_token"]
    if "fp8" in soc.features:
        schemes += ["fp8_token", "fp8_block128"]
        products += ["fp8_token", "fp8_block128"]
    if "mx" in soc.features:
        schemes += ["fp8_block128_ue8m0", "fp8_block32_ue8m0"]
    return [
        claim("gemm.dense", "dense:dense", "bias", dtypes=DTYPES, prepare="dense:prepare"),
        claim("gemm.batched", "dense:batched", dtypes=DTYPES),
        claim("quant.act", "quant:act", schemes=tuple(schemes)),
        claim("gemm.scaled", "quant:scaled", schemes=tuple(products)),
        *(_coded() if "fp8" in soc.features else ()),
    ]


def may_round(problem: Problem) -> bool | Reason:
    """Whether the model bears rounded rows."""
    if "rounded_rows" in problem.features:
        return True
    return Reason("rounds rows to e4m3, which the problem does not permit")


def _coded() -> list[KernelSpec]:
    return [
        claim(
            "gemm.coded",
            "quant:coded",
            *("bias", "rounded_rows"),
            schemes=("fp8_block128",),
            supports=may_round,
        ),
        claim(
            "moe.coded",
            "moe:coded",
            *("limit", "expert_map", "rounded_rows"),
            schemes=("fp8_block128",),
            supports=may_round,
        ),
    ]
