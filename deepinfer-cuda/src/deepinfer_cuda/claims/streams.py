"""What V3.2, V4 and V4.1 have beside attention and products: streams, pooled rows, drafts."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import claim

KERNELS = (
    claim("norm.layer", "layer_norm:layer", "residual", "bias"),
    claim("hc.pre", "streams:pre", "delayed"),
    claim("hc.post", "streams:post"),
    claim("hc.head", "streams:head"),
    claim("hc.collapse", "streams:collapse"),
    claim("kv.compress", "compress:compress", "strided_cache", dtypes=("float32",)),
    claim("spec.verify", "verify:verify", dtypes=("int32",)),
)
