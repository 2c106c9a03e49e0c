"""References of the attention ops: gathered keys and values, a few large products per part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.expanded_attn import (
    ExpandedPlan,
    attend_expanded,
    plan_expanded,
)
from deepinfer_core.ops.reference.gemm import linear
from deepinfer_core.ops.reference.lanes import elementwise
from deepinfer_core.ops.reference.paged_plan import (
    MAX_BATCHED_QUERIES,
    PagedPlan,
    PartKeys,
    Scratch,
    plan_paged,
)
from deepinfer_core.ops.reference.qkv import latents as latents
from deepinfer_core.ops.reference.qkv import qkv as qkv
from deepinfer_core.ops.reference.sparse_attn import sparse_mla as sparse_mla


@dataclass(frozen=True, slots=True)
class _Extras:
    """What one layer adds to plain attention."""

    scale: float
    sinks: Tensor | None
    softcap: float | None
    needs_lse: bool


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
    """See `deepinfer_core.ops.specs.attn.paged`."""
    steps = plan if isinstance(plan, PagedPlan) else plan_paged(None, meta)
    extras = None
    if return_lse or sinks is not None or softcap is not None:
        extras = _Extras(scale, sinks, softcap, needs_lse=return_lse or sinks is not None)
    if steps.is_whole_batch and extras is None:
        return _attend_part(q, k_cache, v_cache, steps, 0, window, scale)
    o = q.new_empty(q.shape)
    wide = torch.promote_types(q.dtype, torch.float32)
    lse = torch.empty(q.shape[:2], dtype=wide, device=q.device) if return_lse else None
    for number, rows in enumerate(steps.rows):
        picked = q.index_select(0, rows)
        if extras is None:
            o[rows] = _attend_part(picked, k_cache, v_cache, steps, number, window, scale)
            continue
        keys, part = steps.keys(number, window), steps.parts[number]
        grouped = _group(picked, part.num_queries, k_cache.shape[2])
        attended, part_lse = _attend(grouped, k_cache, v_cache, keys, steps.scratch, extras)
        o[rows] = _ungroup(attended)
        if lse is not None and part_lse is not None:
            lse[rows] = part_lse.transpose(1, 2).reshape(-1, q.shape[1])
    return o if lse is None else (o, lse)


def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla`."""
    return attend_latents(paged, q_latent, q_rope, cache, meta, scale, plan, return_lse)


def attend_latents(
    attend: Callable[..., Tensor | tuple[Tensor, Tensor]],
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attn.mla` over any `attn.paged`."""
    # One key head, whose values are its keys: what they hold beyond the latent is cut off.
    rows, rank = cache.unsqueeze(2), q_latent.shape[2]
    q = torch.cat((q_latent, q_rope), dim=-1)
    result = attend(q, rows, rows, meta, scale, plan=plan, return_lse=return_lse)
    if isinstance(result, Tensor):
        return result[..., :rank]
    return result[0][..., :rank], result[1]


def mla_prefill(
    q: Tensor,
    cache: Tensor,
    weight: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.mla_prefill`."""
    steps = plan if isinstance(plan, ExpandedPlan) else plan_expanded(None, meta)
    return attend_expanded(paged, linear, q, cache, weight, steps, scale, return_lse)


def merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.attn.merge`."""
    # The floor keeps the difference of two empty sets from being nan.
    top = torch.maximum(lse1, lse2).clamp_(min=torch.finfo(lse1.dtype).min)
    w1, w2 = elementwise(torch.exp_, lse1 - top), elementwise(torch.exp_, lse2 - top)
    total = w1 + w2
    lse = top + elementwise(torch.log_, total)
    share = total.clamp(min=torch.finfo(total.dtype).tiny)
    o = o1 * (w1 / share).unsqueeze(-1) + o2 * (w2 / share).unsqueeze(-1)
    return o.to(o1.dtype), lse


def _attend_part(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    steps: PagedPlan,
    number: int,
    window: int | None,
    scale: float,
) -> Tensor:
    """Attend with torch's own kernel: the rows of one part, [R * L, H, D] -> as many."""
    part, keys = steps.parts[number], steps.keys(number, window)
    k = keys.gather(k_cache, steps.scratch, "k")
    v = k if v_cache is k_cache else keys.gather(v_cache, steps.scratch, "v")
    num_reqs, num_kv_heads, _, head_dim = k.shape
    group = q.shape[1] // num_kv_heads
    if part.num_queries == 1:
        # The heads of a group are so many queries of one key head.
        grouped, mask = q.reshape(num_reqs, -1, group, head_dim), keys.group_mask(q.dtype, group)
        o = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale)
        return o.reshape(q.shape)
    grouped = _group(q, part.num_queries, num_kv_heads)
    if part.num_queries <= MAX_BATCHED_QUERIES:
        flat, mask = grouped.flatten(2, 3), keys.group_mask(q.dtype, group)
        o = F.scaled_dot_product_attention(flat, k, v, attn_mask=mask, scale=scale)
        return _ungroup(o.reshape(grouped.shape))
    is_causal = part.is_causal and keys.is_unwindowed
    long_mask = None if is_causal else keys.mask(q.dtype).unsqueeze(1)
    out = torch.empty_like(grouped)
    for g in range(group):  # each head of the group, so that no keys and values are copied for it
        out[:, :, :, g] = F.scaled_dot_product_attention(
            grouped[:, :, :, g], k, v, attn_mask=long_mask, is_causal=is_causal, scale=scale
        )
    return _ungroup(out)


def _group(q: Tensor, num_queries: int, num_kv_heads: int) -> Tensor:
    """[R * L, H, D] -> [R, Hk, L, G, D]"""
    grouped = q.reshape(-1, num_queries, num_kv_heads, q.shape[1] // num_kv_heads, q.shape[2])
    return grouped.transpose(1, 2)


def _ungroup(grouped: Tensor) -> Tensor:
    """[R, Hk, L, G, D] -> [R * L, H, D]"""
    num_reqs, num_kv_heads, num_queries, group, _ = grouped.shape
    by_query = grouped.transpose(1, 2)
    return by_query.reshape(num_reqs * num_queries, num_kv_heads * group, -1)


def _attend(
    grouped: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    keys: PartKeys,
    scratch: Scratch,
    extras: _Extras,
) -> tuple[Tensor, Tensor | None]:
    """Attend step by step, for what torch's own kernel cannot do.

    Returns:
        o [R, Hk, L, G, D] and, if wanted, lse [R, Hk, L, G].
    """
    num_reqs, num_kv_heads, num_queries, group, head_dim = grouped.shape
    matrices, rows = num_reqs * num_kv_heads, num_queries * group
    wide = torch.promote_types(grouped.dtype, torch.float32)
    gathered = keys.gather(k_cache, scratch, "k")
    k = scratch.take("wide k", tuple(gathered.shape), gathered, wide).copy_(gathered)
    k = k.view(matrices, -1, head_dim)
    q = grouped.to(wide).mul(extras.scale).reshape(matrices, rows, head_dim)
    flat = scratch.take("scores", (matrices, rows, k.shape[1]), q)
    torch.bmm(q, k.transpose(1, 2), out=flat)
    scores = flat.view(num_reqs, num_kv_heads, num_queries, group, -1)
    if extras.softcap is not None:
        scores.div_(extras.softcap).tanh_().mul_(extras.softcap)
    scores += keys.mask(wide)[:, None, :, None]
    lse = None
    if extras.needs_lse:
        lse = scores.logsumexp(dim=-1)
        if extras.sinks is not None:
            lse = lse.logaddexp(extras.sinks.to(wide).view(num_kv_heads, 1, group))
        weights = flat.sub_(lse.view(matrices, rows, 1)).exp_()
    else:
        weights = flat.softmax(dim=-1)
    v = keys.gather(v_cache, scratch, "v").reshape(matrices, -1, head_dim)
    return torch.bmm(weights.to(v.dtype), v).view(grouped.shape), lse
