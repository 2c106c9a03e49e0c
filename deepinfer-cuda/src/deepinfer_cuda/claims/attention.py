"""Attention over the paged cache."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import LAWS, claim

KERNELS = (
    claim(
        "attn.paged",
        "paged:paged",
        *("varlen", "window", "sinks", "softcap", "lse_out", "strided_cache"),
        laws=LAWS,
        plan="paged:plan",
    ),
)
