"""`attn.paged` by FlashInfer's batch wrappers, which read our pages as they lie.

Written against flashinfer-python 0.7.4. A wrapper plans on the host with exact lengths, so each
step waits for the device once, and no step can be recorded.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer recommends."""
MIN_GROUP = 4
"""Query heads per key head from which matrix units pay for single queries."""


def plan(problem: Problem, meta: AttentionMeta) -> Any:
    """The `plan` of `attn.paged`: a wrapper that knows this step's pages."""
    sizes = [problem.dim(name) or 1 for name in ("num_q_heads", "num_kv_heads", "head_dim")]
    return _planned(meta, *sizes, dtype=getattr(torch, problem.dtype))


def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.paged`; without sinks and softcap."""
    wrapper: Any = plan or _planned(meta, q.shape[1], *k_cache.shape[2:], dtype=q.dtype)
    result = wrapper.run(
        q.contiguous(),
        (k_cache, v_cache),
        q_scale=scale,
        window_left=-1 if window is None else window - 1,
        return_lse=return_lse,
    )
    if not return_lse:
        attended: Tensor = result
        return attended
    o, lse = result
    return o, lse * math.log(2.0)


def _planned(
    meta: AttentionMeta, num_q_heads: int, num_kv_heads: int, head_dim: int, *, dtype: torch.dtype
) -> Any:
    is_decode = meta.max_query_len <= 1
    device = meta.seq_lens.device
    wrapper = _wrapper(device, is_decode, num_q_heads, num_kv_heads, head_dim, dtype)
    seq_lens = meta.seq_lens.cpu()  # SYNC: FlashInfer shares work out on the host
    counts = (seq_lens + meta.block_size - 1) // meta.block_size
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    is_page = torch.arange(meta.block_tables.shape[1]) < counts.unsqueeze(1)
    pages = (
        indptr,
        meta.block_tables[is_page.to(device)],
        (seq_lens - (counts - 1) * meta.block_size).int(),
        *(num_q_heads, num_kv_heads, head_dim, meta.block_size),
    )
    # The scale is the call's: it may differ between layers that share a plan.
    options = {"q_data_type": dtype, "kv_data_type": dtype, "sm_scale": 1.0}
    if is_decode:
        wrapper.plan(*pages, **options)
    else:
        wrapper.plan(meta.cu_seqlens_q.cpu(), *pages, causal=True, **options)
    return wrapper


@cache
def _wrapper(
    device: torch.device,
    is_decode: bool,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> Any:
    """One for each kind of layer: it holds what was planned last."""
    library: Any = import_module("flashinfer")
    workspace = _workspace(device)
    if is_decode:
        has_group = num_q_heads >= MIN_GROUP * num_kv_heads
        return library.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=has_group
        )
    return library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
