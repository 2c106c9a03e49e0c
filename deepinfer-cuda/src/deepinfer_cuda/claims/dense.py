"""Products with plain weights."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import LAWS, claim

KERNELS = (
    claim("gemm.dense", "dense:dense", "bias", laws=LAWS, provider="cuda.dense"),
    claim("gemm.gated", "dense:gated", "bias", "limit", laws=LAWS, provider="cuda.dense"),
)
