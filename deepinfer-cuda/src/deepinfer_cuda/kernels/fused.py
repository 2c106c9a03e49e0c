"""Torch's fused attention with its normaliser, where this device has it: cuDNN's on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention


def is_fused(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_fused` takes these: [1, H, L, D], [1, Hk, N, D] and [1, Hk, N, Dv]."""
    if q.device.type == "cpu":  # Triton's interpreter
        return q.shape[3] == v.shape[3]
    params = SDPAParams(q, k, v, None, 0.0, True, q.shape[1] != k.shape[1])
    return can_use_cudnn_attention(params)


def attend_fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention of [1, H, L, D] to [1, Hk, N, D] and [1, Hk, N, Dv].

    Args:
        is_causal: then there are as many keys as queries.

    Returns:
        o [1, H, L, Dv] and its normaliser [H, L] float32.
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
            q, k, v, None, True, 0.0, is_causal, False, scale=scale
        )[:2]
    return o, lse.reshape(q.shape[1], q.shape[2])
