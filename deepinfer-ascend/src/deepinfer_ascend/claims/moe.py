"""Mixtures of experts."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims.claim import DTYPES, claim
from deepinfer_ascend.soc import Soc


def kernels(soc: Soc) -> list[KernelSpec]:
    gating = ["bias", "groups", "renormalize", "sigmoid"]
    if "sqrtsoftplus" in soc.features:
        gating += ["sqrtsoftplus", "hash_ids", "image_bias"]
    return [
        claim("moe.route", "moe:route", *gating, dtypes=DTYPES),
        claim("moe.experts", "moe:experts", "limit", "expert_map"),
    ]
