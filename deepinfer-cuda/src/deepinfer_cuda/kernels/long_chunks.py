"""Attention of long chunks through torch's fused kernels, over keys gathered from the cache.

Twice as quick as tiles over a block table, once a chunk is long enough to pay for the copy.
"""

from __future__ import annotations

from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention


def attend_long(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta, request: int, scale: float
) -> Tensor:
    """[L, H, D] queries of one request's chunk -> the same.

    Args:
        meta: its `seq_len_bounds` are exact for this request: a chunk of a prompt has no drafts
            before it.
    """
    length, count = meta.seq_len_bounds[request], len(q)
    block_size = k_cache.shape[1]
    blocks = meta.block_tables[request, : -(-length // block_size)].long()
    keys, values = (
        cache.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0)
        for cache in (k_cache, v_cache)
    )
    bias = None
    if count < length <= 2 * count:
        # The kernel for squares is so much quicker that rows for nothing cost less.
        q = pad(q, (0, 0, 0, 0, length - count, 0))
    elif count < length:
        bias = causal_lower_right(count, length)
    o = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=q.shape[1] != k_cache.shape[2],
    )
    return o.squeeze(0).transpose(0, 1)[-count:]
