"""Ops that treat each row alone: norms, activations."""

from __future__ import annotations

from deepinfer_ascend.claims.claim import DTYPES, claim

KERNELS = (
    claim("norm.rms", "norm:rms", "residual", dtypes=DTYPES),
    claim("act.silu_mul", "act:silu_mul", "limit", dtypes=DTYPES),
)
