"""Ops that treat each row or token alone: norms, activations, rotation, cache writes."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims.claim import DTYPES, claim
from deepinfer_ascend.soc import Soc


def kernels(soc: Soc) -> list[KernelSpec]:
    del soc  # all of them have these
    return [
        claim("norm.rms", "norm:rms", "residual", dtypes=DTYPES),
        claim("act.silu_mul", "act:silu_mul", "limit", dtypes=DTYPES),
        claim("rope.apply", "rope:apply", "interleaved", "inverse", dtypes=DTYPES),
        claim("kv.store", "store:store", "latent", "strided_cache", dtypes=(*DTYPES, "uint8")),
    ]
