"""The vendor's operator of attention for inference, called with a mask of our own.

It wants lengths on the host, and the host knows upper bounds only, since drafts may be in flight.
So it reads up to the bounds, and a mask that is made on the device from positions hides the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DIM_UNIT = 16
"""Head sizes are multiples of this."""
MAX_DIM = 512
MAX_QUERIES_PER_KEY = 64


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    lengths: Sequence[int],
    scale: float,
    *,
    num_kv_heads: int,
    return_lse: bool,
    **where: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend to keys that lie in a row or, with `block_table` and `block_size`, in pages.

    Args:
        q: [B, S, H, D]
        k, v: [B, K, Hk, D], or pages [P, s, Hk * D].
        hidden: [B, S, K] bool, which keys a query does not see. A query that sees none gives
            anything.
        lengths: at most K, one for each of B.

    Returns:
        o [B, S, H, D], and lse [B, S, H] float32 if it is asked for.
    """
    num_heads, head_dim = q.shape[2:]
    if num_heads // num_kv_heads > MAX_QUERIES_PER_KEY and num_kv_heads == 1:
        parts = [
            attend(
                part, k, v, hidden, lengths, scale, num_kv_heads=1, return_lse=return_lse, **where
            )
            for part in torch.split(q, MAX_QUERIES_PER_KEY, dim=2)
        ]
        lses = [lse for _, lse in parts if lse is not None]
        return torch.cat([o for o, _ in parts], 2), torch.cat(lses, 2) if lses else None
    if fill := -head_dim % DIM_UNIT:
        q, k, v = (F.pad(rows, (0, fill)) for rows in (q, k, v))
    o, lse = torch.ops.npu.npu_fused_infer_attention_score_v2(
        q.contiguous(),
        k,
        v,
        atten_mask=hidden.unsqueeze(1),
        actual_seq_kvlen=list(lengths),
        num_query_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        softmax_scale=scale,
        input_layout="BSND",
        return_softmax_lse=return_lse,
        **where,
    )
    # LAYOUT: normalisers come as [B, H, S, 1].
    return o[..., :head_dim], lse.squeeze(-1).transpose(1, 2) if return_lse else None
