"""Cases of every op, one file per family."""

from __future__ import annotations

from deepinfer_core.testing.case import OpCases
from deepinfer_core.testing.cases import (
    act,
    attn,
    coded,
    comm,
    engram,
    gemm,
    hc,
    kv,
    latent,
    moe,
    norm,
    qkv,
    records,
    rope,
    sample,
    sparse,
    spec,
)

OP_CASES: dict[str, OpCases] = {
    **act.OPS,
    **attn.OPS,
    **coded.OPS,
    **comm.OPS,
    **engram.OPS,
    **gemm.OPS,
    **hc.OPS,
    **kv.OPS,
    **latent.OPS,
    **moe.OPS,
    **norm.OPS,
    **qkv.OPS,
    **records.OPS,
    **rope.OPS,
    **sample.OPS,
    **sparse.OPS,
    **spec.OPS,
}
"""Op -> its cases. An op without cases cannot be checked; a test refuses that."""
