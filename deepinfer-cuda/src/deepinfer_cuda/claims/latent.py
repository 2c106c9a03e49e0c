"""Attention to latents and to chosen rows, and the products around it."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import INVARIANT, LAWS, claim

_VARLEN = ("varlen", "lse_out", "strided_cache")

KERNELS = (
    claim("attn.mla", "latent:mla", *_VARLEN, laws=LAWS, plan="latent:plan"),
    claim(
        "attn.mla",
        "latent:mla_invariant",
        *_VARLEN,
        laws=INVARIANT,
        plan="latent:plan_invariant",
        provider="cuda.triton_invariant",
        priority=5,
    ),
    claim(
        "attn.mla_prefill",
        "latent_prefill:mla_prefill",
        *_VARLEN,
        laws=LAWS - {"graph_safe"},
        plan="latent_prefill:plan",
    ),
    claim("attn.latents", "latent_rows:latents", "interleaved", "strided_cache"),
    claim("gemm.batched", "batched:batched", laws=LAWS),
)
