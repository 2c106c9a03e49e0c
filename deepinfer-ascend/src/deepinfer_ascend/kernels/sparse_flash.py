"""The vendor's operator of attention to chosen rows, for latents of 512 and rotated keys of 64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LATENT_DIM, ROPE_DIM = 512, 64
ABSORBED = 2
ALL, CAUSAL = 0, 3


def sparse_flash(
    q: tuple[Tensor, Tensor],
    pages: Any,
    indices: Tensor,
    scale: float,
    *,
    is_causal: bool,
    **lengths: Any,
) -> Tensor:
    """Attend from packed queries to rows of pages.

    Args:
        q: [T, H, 512] and [T, H, 64].
        pages: [P, s, 512] and [P, s, 64]; s a multiple of 16.
        indices: [T, n] int32, which rows of its request a query sees; -1 after the last.
        lengths: `block_table` [B, pages of a request], `actual_seq_lengths_query` [B] ends of the
            requests' queries, `actual_seq_lengths_kv` [B] rows of each; all int32.

    Returns:
        [T, H, 512]
    """
    latents, rotated = (part.contiguous().unsqueeze(2) for part in pages)
    o, _, _ = torch.ops.npu.npu_sparse_flash_attention(
        q[0].contiguous(),
        latents,
        latents,
        indices.unsqueeze(1).contiguous(),
        scale,
        query_rope=q[1].contiguous(),
        key_rope=rotated,
        sparse_block_size=1,
        layout_query="TND",
        layout_kv="PA_BSND",
        sparse_mode=CAUSAL if is_causal else ALL,
        attention_mode=ABSORBED,
        **lengths,
    )
    attended: Tensor = o
    return attended
