"""References of what lies between projections and attention: the ops that these stand for."""

from __future__ import annotations

import torch
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


def latents(
    row: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    weight: Tensor,
    eps: float,
    layout: str = "half",
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
) -> Tensor | None:
    """See `deepinfer_core.ops.specs.attn.latents`."""
    rank = len(weight)
    c, _ = rms(row[:, :rank].contiguous(), weight, eps)
    k, _ = apply(row[:, None, rank:], None, positions, cos_sin, layout)
    rows = torch.cat((c.unsqueeze(1), k), dim=2)
    store(rows, None, cache.unsqueeze(2), None, slot_mapping)
    return None if q is None else rms(q.contiguous(), q_weight, eps)[0]


def _normalise(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return rms(x.reshape(-1, x.shape[2]), weight, eps)[0].view(x.shape)
