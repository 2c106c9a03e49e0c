"""Attention of long chunks through torch's fused kernels, over keys gathered from the cache.

More than twice as quick as tiles over a block table, once a chunk is long enough to pay for the
copy. Those kernels know no mask that begins with the chunk, so what came before it and the chunk
itself are two calls, merged by weight (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import torch
from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from deepinfer_cuda.kernels.fused import attend_fused, is_fused
from deepinfer_cuda.kernels.gather_heads import gather_heads
from deepinfer_cuda.kernels.merge import merge_into


def attend_long(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta, request: int, scale: float
) -> Tensor:
    """[L, H, D] queries of one request's chunk -> the same.

    Args:
        meta: its `seq_len_bounds` are exact for this request: a chunk of a prompt has no drafts
            before it.
    """
    length = meta.seq_len_bounds[request]
    keys, values = gather_heads(k_cache, v_cache, meta.block_tables[request], length)
    heads = q.transpose(0, 1).unsqueeze(0)
    keys, values = keys.unsqueeze(0), values.unsqueeze(0)
    if is_fused(heads, keys, values):
        return attend_parts(heads, keys, values, scale)
    return _attend_whole(heads, keys, values, scale)


def attend_parts(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[1, H, L, D] of the last L of [1, Hk, N, D] and [1, Hk, N, Dv] -> [L, H, Dv]."""
    count, before = q.shape[2], k.shape[2] - q.shape[2]
    own, own_lse = attend_fused(
        q, k[:, :, before:], v[:, :, before:], scale, is_causal=True, wants_lse=before > 0
    )
    own = own.squeeze(0).transpose(0, 1)
    if not before:
        return own
    past, past_lse = attend_fused(q, k[:, :, :before], v[:, :, :before], scale, is_causal=False)
    o = torch.empty((count, q.shape[1], v.shape[3]), dtype=q.dtype, device=q.device)
    merge_into(o, None, past.squeeze(0).transpose(0, 1), past_lse.t(), own, own_lse.t())
    return o


def _attend_whole(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """As `attend_parts`, with torch's choice of a kernel."""
    count, length = q.shape[2], k.shape[2]
    bias = None
    if count < length <= 2 * count:
        # The kernel for squares is so much quicker that rows for nothing cost less.
        q = pad(q, (0, 0, length - count, 0))
    elif count < length:
        bias = causal_lower_right(count, length)
    o = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return o.squeeze(0).transpose(0, 1)[-count:]
