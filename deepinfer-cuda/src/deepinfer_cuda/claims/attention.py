"""Attention over the paged cache."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import INVARIANT, LAWS, claim

FEATURES = ("varlen", "window", "sinks", "softcap", "lse_out", "strided_cache")

KERNELS = (
    claim("attn.merge", "merge:merge"),
    claim("attn.paged", "paged:paged", *FEATURES, laws=LAWS, plan="paged:plan"),
    claim(
        "attn.paged",
        "invariant_paged:paged",
        *FEATURES,
        laws=INVARIANT,
        plan="invariant_paged:plan",
        provider="cuda.triton_invariant",
        priority=5,
    ),
)
