"""What V3.2, V4 and V4.1 have beside attention and products: streams, pooled rows, drafts."""

from __future__ import annotations

from dataclasses import replace

from deepinfer_cuda.claims.claim import claim

RECORDS = ("656", "584", "528", "288", "132", "68")
_ENCODE = claim("quant.encode", "encode:encode", schemes=RECORDS, numerics="exact")

KERNELS = (
    claim("norm.layer", "layer_norm:layer", "residual", "bias"),
    claim("hc.pre", "streams:pre", "delayed"),
    claim("hc.post", "streams:post"),
    claim("hc.head", "streams:head"),
    claim("hc.collapse", "streams:collapse"),
    claim("kv.compress", "compress:compress", "strided_cache", dtypes=("float32",)),
    # Triton knows these codes from 8.9 on.
    replace(_ENCODE, caps=replace(_ENCODE.caps, arch=("8.9", None))),
    claim("spec.verify", "verify:verify", dtypes=("int32",)),
)
