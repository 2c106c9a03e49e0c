"""Signature stubs of all ops, one file per family. Importing this package fills `OP_SPECS`.

A spec says what an op is called, takes and gives; it holds no implementation and no torch.
"""

from deepinfer_core.ops.specs import (
    act,
    attn,
    comm,
    engram,
    gemm,
    hc,
    index,
    kv,
    moe,
    norm,
    quant,
    rope,
    sample,
    spec,
)

__all__ = [
    "act",
    "attn",
    "comm",
    "engram",
    "gemm",
    "hc",
    "index",
    "kv",
    "moe",
    "norm",
    "quant",
    "rope",
    "sample",
    "spec",
]
