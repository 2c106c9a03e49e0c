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


@emulates("npu_sparse_flash_attention")
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    attention_mode: int = 0,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    require(not others and sparse_block_size == 1, f"what is emulated, not {sorted(others)}")
    require((layout_query, layout_kv, attention_mode) == ("TND", "PA_BSND", 2), "pages of latents")
    tables, ends, lengths = block_table, actual_seq_lengths_query, actual_seq_lengths_kv
    assert query_rope is not None and key_rope is not None and value is not None
    assert tables is not None and ends is not None and lengths is not None
    given = (query, key, value, sparse_indices, tables, ends, lengths, query_rope, key_rope)
    require(all(part.is_contiguous() and part.numel() for part in given), "contiguous tensors")
    require(query.dtype in play.halves() and query.dtype == key.dtype, "16 bits of one kind")
    require(query.shape[2] == 512 and query_rope.shape[2] == 64, "latents of 512, keys of 64")
    require(query.shape[1] in (1, 2, 4, 8, 16, 32, 64, 128), "heads of a power of two")
    require(key.shape[1] % 16 == 0 and key.shape[1] <= 1024, "blocks of 16 times n rows")
    ints = (sparse_indices, tables, ends, lengths)
    require(all(part.dtype == torch.int32 for part in ints), "int32 numbers")
    is_named = sparse_indices.squeeze(1) >= 0
    require(not bool((is_named[:, 1:] & ~is_named[:, :-1]).any()), "-1 behind the last only")
    q = torch.cat([query, query_rope], dim=2).float()
    rows = torch.cat([key, key_rope], dim=3).squeeze(2).float()
    o = torch.zeros_like(query)
    first = 0
    for request, end in enumerate(ends.tolist()):
        held = rows[tables[request].long()].flatten(0, 1)[: int(lengths[request])]
        for token in range(first, end):
            seen = sparse_indices[token, 0][is_named[token]].long()
            if sparse_mode == 3:
                seen = seen[seen <= len(held) - end + token]
            keys = held[seen[seen < len(held)]]
            weights = (q[token] @ keys.T * scale_value).softmax(dim=1)
            o[token] = (weights @ keys[:, :512]).to(o.dtype)
        first = end
    return o, torch.zeros(1), torch.zeros(1)


@emulates("npu_lightning_indexer")
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    require(not others and sparse_mode == 0, f"what is emulated, not {sorted(others)}")
    require((layout_query, layout_key) == ("TND", "PA_BSND"), "pages of keys")
    ends, lengths, tables = actual_seq_lengths_query, actual_seq_lengths_key, block_table
    assert ends is not None and lengths is not None and tables is not None
    given = (query, key, weights, ends, lengths, tables)
    require(all(part.is_contiguous() and part.numel() for part in given), "contiguous tensors")
    require(query.dtype in play.halves() and query.dtype == key.dtype, "16 bits of one kind")
    is_wide = "float32_weights" in play.soc().features
    wanted = {query.dtype, torch.float32} if is_wide else {query.dtype}
    require(weights.dtype in wanted, f"weights of {wanted}")
    require(query.shape[2] == 128 and query.shape[1] <= 64, "at most 64 heads of 128")
    require(is_wide or query.shape[1] in (8, 16, 24, 32, 64), "8, 16, 24, 32 or 64 heads")
    require(key.shape[1] % 16 == 0 and key.shape[1] <= 1024, "blocks of 16 times n keys")
    require(key.numel() < 2**31 and sparse_count <= 2048, "what 32 bits count, and 2048 of it")
    found = torch.full((len(query), 1, sparse_count), -1, dtype=torch.int32)
    first = 0
    for request, end in enumerate(ends.tolist()):
        keys = key[tables[request].long()].flatten(0, 2)[: int(lengths[request])].float()
        for token in range(first, end):
            scores = (query[token].float() @ keys.T).relu() * weights[token].float().unsqueeze(1)
            best = scores.sum(dim=0).sort(descending=True, stable=True).indices[:sparse_count]
            found[token, 0, : len(best)] = best.int()
        first = end
    return found, torch.empty(0)
