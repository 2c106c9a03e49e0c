"""Products with plain and with quantised weights."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims.claim import DTYPES, claim
from deepinfer_ascend.soc import Soc


def kernels(soc: Soc) -> list[KernelSpec]:
    del soc
    return [
        claim("gemm.dense", "dense:dense", "bias", dtypes=DTYPES, prepare="dense:prepare"),
        claim("gemm.batched", "dense:batched", dtypes=DTYPES),
        claim("quant.act", "quant:act", schemes=("int8_token",)),
        claim("gemm.scaled", "quant:scaled", schemes=("int8_token",)),
    ]
