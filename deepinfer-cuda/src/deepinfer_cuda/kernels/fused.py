"""Torch's fused attention with its normaliser, where this device has it: cuDNN's on a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

TRIED = 128
"""Queries and keys of a trial."""


def is_fused(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_fused` takes these: [1, H, L, D], [1, Hk, N, D] and [1, Hk, N, Dv]."""
    if q.device.type == "cpu":  # Triton's interpreter
        return q.shape[3] == v.shape[3]
    params = SDPAParams(q, k, v, None, 0.0, True, q.shape[1] != k.shape[1])
    heads = (q.shape[1], k.shape[1])
    return can_use_cudnn_attention(params) and _serves(
        q.device, q.dtype, heads, q.shape[3], v.shape[3]
    )


@cache
def _serves(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int], dim: int, value_dim: int
) -> bool:
    """Whether it really does: which heads it takes depends on versions that torch does not ask."""
    sizes = ((heads[0], dim), (heads[1], dim), (heads[1], value_dim))
    q, k, v = (
        torch.zeros((1, count, TRIED, size), dtype=dtype, device=device) for count, size in sizes
    )
    try:
        for is_causal in (True, False):
            attend_fused(q, k, v, 1.0, is_causal=is_causal)
    except RuntimeError:  # says that no engine takes it
        return False
    return True


def attend_fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, is_causal: bool, wants_lse: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention of [1, H, L, D] to [1, Hk, N, D] and [1, Hk, N, Dv].

    Args:
        is_causal: then there are as many keys as queries.

    Returns:
        o [1, H, L, Dv] and its normaliser [H, L] float32, of which nothing may be read that was
        not wanted.
    """
    ops: Any = torch.ops.aten
    if q.device.type == "cpu":
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        o, lse = ops._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, scale=scale
        )
    else:
        o, lse = ops._scaled_dot_product_cudnn_attention(
            q, k, v, None, wants_lse, 0.0, is_causal, False, scale=scale
        )[:2]
    return o, lse.reshape(q.shape[1], q.shape[2]) if wants_lse else o
