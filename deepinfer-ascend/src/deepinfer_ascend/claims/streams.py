"""Hyper-connections."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_ascend.claims.claim import claim
from deepinfer_ascend.soc import Soc

PRE_STREAMS, POST_STREAMS = (4, 6, 8), (4,)
POST_SIZES = tuple(range(128, 8193, 128))
PRE_SIZES = (*range(16, 128, 16), *POST_SIZES)


def kernels(soc: Soc) -> list[KernelSpec]:
    post = claim("hc.post", "hc:post", dims={"hc_mult": POST_STREAMS, "hidden_size": POST_SIZES})
    if "mhc" not in soc.features:
        return [post]
    dims = {"hc_mult": PRE_STREAMS, "hidden_size": PRE_SIZES}
    return [claim("hc.pre", "hc:pre", "delayed", dims=dims), post]
