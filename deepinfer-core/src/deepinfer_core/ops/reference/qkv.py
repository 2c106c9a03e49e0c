"""Reference of what lies between projected heads and attention: the ops it stands for."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.ops.reference.kv import store
from deepinfer_core.ops.reference.norm import rms
from deepinfer_core.ops.reference.rope import apply


def qkv(
    qkv: Tensor,
    num_q_heads: int,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    layout: str = "half",
) -> Tensor:
    """See `deepinfer_core.ops.specs.attn.qkv`."""
    num_kv_heads = k_cache.shape[2]
    q, k, v = qkv.split_with_sizes((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    q, k = _normalise(q, q_weight, eps), _normalise(k, k_weight, eps)
    rotated_q, rotated_k = apply(q, k, positions, cos_sin, layout)
    assert rotated_k is not None
    store(rotated_k, v, k_cache, v_cache, slot_mapping)
    return rotated_q


def _normalise(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return rms(x.reshape(-1, x.shape[2]), weight, eps)[0].view(x.shape)
