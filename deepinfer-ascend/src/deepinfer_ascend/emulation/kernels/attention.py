"""The fused operator of attention for inference, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.emulation import play
from deepinfer_ascend.emulation.registry import emulates, require


@emulates("npu_fused_infer_attention_score_v2")
def fused_infer_attention_score_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    input_layout: str = "BSH",
    block_size: int = 0,
    return_softmax_lse: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    require(not others and input_layout == "BSND", f"what is emulated, not {sorted(others)}")
    require(query.dtype in play.halves() and key.dtype == query.dtype, "16 bits of one kind")
    tensors = (query, key, value)
    require(all(tensor.is_contiguous() for tensor in tensors), "contiguous tensors")
    num_batches, num_queries, _, head_dim = query.shape
    require(head_dim % 16 == 0 and head_dim <= 512, "a head size of a multiple of 16 up to 512")
    require(query.shape[2] == num_query_heads, "the number of query heads")
    group = num_query_heads // num_key_value_heads
    require(group * num_key_value_heads == num_query_heads and group <= 64, "few query heads a key")
    lengths = list(actual_seq_kvlen or [])
    require(len(lengths) == num_batches, "as many lengths of keys as batches")
    if block_table is not None:
        unit = 16 if num_queries == 1 else 128
        require(block_size % unit == 0 and key.shape[1] == block_size, f"blocks of {unit} times n")
        require(key.numel() < 2**31, "a cache that 32 bits can count")
        require(block_table.is_contiguous() and block_table.dtype == torch.int32, "int32 tables")
        key, value = (_paged(cache, block_table, num_key_value_heads) for cache in (key, value))
    require(key.shape[2] == num_key_value_heads, "the number of key heads")
    num_keys = key.shape[1]
    require(max(lengths) <= num_keys, "lengths within the keys")
    scores = torch.einsum("bshd,bkhd->bhsk", query.float(), _spread(key, group)) * softmax_scale
    beyond = torch.arange(num_keys) >= torch.tensor(lengths).view(-1, 1, 1, 1)
    if atten_mask is not None:
        wanted = (num_batches, 1, num_queries, num_keys)
        require(atten_mask.shape == wanted and atten_mask.dtype == torch.bool, f"masks {wanted}")
        beyond = beyond | atten_mask
    scores = scores.masked_fill(beyond, -float("inf"))
    lse = scores.logsumexp(-1, keepdim=True)
    # Garbage behind the last key is finite in a cache that was zeroed; a weight of zero hides it.
    o = torch.einsum("bhsk,bkhd->bshd", (scores - lse).exp(), _spread(value, group))
    return o.to(query.dtype), lse if return_softmax_lse else torch.zeros(1)


def _paged(cache: Tensor, block_table: Tensor, num_heads: int) -> Tensor:
    """[P, s, heads * D] -> [B, n * s, heads, D]"""
    require(cache.dim() == 3, "blocks of [tokens, heads * size]")
    rows = cache.index_select(0, block_table.flatten())
    return rows.view(block_table.shape[0], -1, num_heads, cache.shape[2] // num_heads)


def _spread(rows: Tensor, group: int) -> Tensor:
    return rows.float().repeat_interleave(group, dim=2)
