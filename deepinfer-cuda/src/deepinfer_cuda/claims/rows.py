"""Ops that treat each row or token alone: norms, activations, rotation, cache writes."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import claim

KERNELS = (
    claim("norm.rms", "norm:rms", "residual"),
    claim("act.silu_mul", "act:silu_mul", "limit"),
    claim("rope.apply", "rope:apply", "interleaved", "inverse"),
    claim("kv.store", "store:store", "latent", "strided_cache"),
    claim("attn.qkv", "qkv:qkv", "qk_norm", "interleaved", "strided_cache"),
)
