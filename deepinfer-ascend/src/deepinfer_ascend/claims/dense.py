"""Products with plain weights."""

from __future__ import annotations

from deepinfer_ascend.claims.claim import DTYPES, claim

KERNELS = (claim("gemm.dense", "dense:dense", "bias", dtypes=DTYPES, prepare="dense:prepare"),)
