"""`attn.mla` by FlashMLA where each request has one query; chunks go through our own kernel.

Written against FlashMLA as of its `flash_mla_with_kvcache`, dense and bfloat16, on pages of 64.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.kernels import latent

PAGE_TOKENS = 64


def plan(problem: Problem, meta: AttentionMeta) -> object | None:
    """The `plan` of `attn.mla`: how FlashMLA shares the caches out, or our own plan."""
    if meta.max_query_len > 1:
        return latent.plan(problem, meta)
    return _schedule(meta, problem.dim("num_q_heads") or 1)


def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla`.

    Raises:
        PlatformError: the cache has pages of another size.
    """
    if meta.max_query_len > 1:
        return latent.mla(q_latent, q_rope, cache, meta, scale, plan, return_lse)
    if cache.shape[1] != PAGE_TOKENS:
        raise PlatformError(
            f"FlashMLA wants pages of {PAGE_TOKENS} tokens, found {cache.shape[1]}; "
            f"set cache.block_size={PAGE_TOKENS}, or name another provider of attn.mla"
        )
    library: Any = import_module("flash_mla")
    schedule: Any = plan if isinstance(plan, tuple) else _schedule(meta, q_latent.shape[1])
    o, lse = library.flash_mla_with_kvcache(
        torch.cat((q_latent, q_rope), dim=-1).unsqueeze(1),
        cache.unsqueeze(2),
        meta.block_tables,
        meta.seq_lens,
        q_latent.shape[2],
        *schedule,
        softmax_scale=scale,
        causal=True,
    )
    attended: Tensor = o.squeeze(1)
    return (attended, lse.squeeze(2)) if return_lse else attended


def _schedule(meta: AttentionMeta, num_heads: int) -> tuple[Any, Any]:
    """Metadata and splits; newer versions fill the first in at the first call, in each layer's."""
    library: Any = import_module("flash_mla")
    metadata, splits = library.get_mla_metadata(meta.seq_lens, num_heads, 1)
    return metadata, splits
