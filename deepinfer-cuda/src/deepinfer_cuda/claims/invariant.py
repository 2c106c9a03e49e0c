"""Products whose bits do not depend on the batch: slower, so only where that is asked for."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import claim

PROVIDER = "cuda.triton_invariant"

KERNELS = (
    claim("gemm.dense", "invariant_gemm:dense", "bias", provider=PROVIDER, priority=5),
    claim("gemm.batched", "invariant_gemm:batched", provider=PROVIDER, priority=5),
)
