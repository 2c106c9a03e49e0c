"""What V3.2, V4 and V4.1 have beside attention and products: streams, pooled rows, drafts."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import OLDEST_E4M3, claim, since

RECORDS = ("656", "584", "528", "288", "132", "68")

KERNELS = (
    claim("norm.layer", "layer_norm:layer", "residual", "bias"),
    claim("hc.pre", "streams:pre", "delayed"),
    claim("hc.post", "streams:post"),
    claim("hc.head", "streams:head"),
    claim("hc.collapse", "streams:collapse"),
    claim("kv.compress", "compress:compress", "strided_cache", dtypes=("float32",)),
    since(OLDEST_E4M3, claim("quant.encode", "encode:encode", schemes=RECORDS, numerics="exact")),
    claim("spec.verify", "verify:verify", dtypes=("int32",)),
)
