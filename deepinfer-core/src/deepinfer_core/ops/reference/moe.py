"""References of the mixture-of-experts ops."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.act import silu_mul
from deepinfer_core.ops.reference.codes import decode_weight
from deepinfer_core.ops.reference.gemm import linear
from deepinfer_core.ops.reference.lanes import elementwise


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
    hash_ids: Tensor | None = None,
    image_bias: Tensor | None = None,
    is_image: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.moe.route`."""
    scores = _score(logits, scoring)
    if hash_ids is not None:
        return _weigh(scores, hash_ids.long(), renormalize, scale)
    if bias is not None and image_bias is not None and is_image is not None:
        bias = torch.where(is_image.unsqueeze(1), image_bias, bias)
    ranked = scores if bias is None else scores + bias
    if num_groups > 1:
        ranked = _keep_groups(ranked, num_groups, top_groups, 1 if bias is None else 2)
    # Only a stable sort promises the lower id among equals.
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    return _weigh(scores, ids, renormalize, scale)


def _weigh(scores: Tensor, ids: Tensor, renormalize: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Order the chosen experts by their scores, and make weights of these."""
    ids = ids.sort(dim=-1).values
    weights, order = scores.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return ids.int(), weights * scale if scale != 1.0 else weights


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w2: Tensor,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.moe.experts`."""

    def feed_forward(rows: Tensor, expert: int) -> Tensor:
        return linear(silu_mul(linear(rows, w13[expert]), limit), w2[expert])

    return run_experts(feed_forward, x, ids, weights, w13.shape[0], expert_map)


def coded(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w13_scales: Tensor,
    w2: Tensor,
    w2_scales: Tensor,
    scheme: str,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.moe.coded`."""

    def feed_forward(rows: Tensor, expert: int) -> Tensor:
        up = decode_weight(w13[expert], w13_scales[expert], scheme, x.dtype)
        hidden = silu_mul(linear(rows, up), limit)
        return linear(hidden, decode_weight(w2[expert], w2_scales[expert], scheme, x.dtype))

    return run_experts(feed_forward, x, ids, weights, w13.shape[0], expert_map)


def run_experts(
    feed_forward: Callable[[Tensor, int], Tensor],
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    num_experts: int,
    expert_map: Tensor | None,
) -> Tensor:
    """`moe.experts` over any function of (rows of x, local expert)."""
    per_slot = x.new_zeros(ids.numel(), x.shape[1])
    for expert, slots in _assignments(ids, num_experts, expert_map):
        per_slot[slots] = feed_forward(x[slots // ids.shape[1]], expert)
    return _sum_slots(per_slot.view(*ids.shape, x.shape[1]), weights)


def _assignments(
    ids: Tensor, num_experts: int, expert_map: Tensor | None
) -> list[tuple[int, Tensor]]:
    flat = ids.flatten().long()
    if expert_map is not None:
        flat = expert_map.long()[flat]
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat + 1, minlength=num_experts + 1)
    # SYNC: the rows of each expert decide the shapes of its products.
    groups = torch.split(order, counts.tolist())
    return [(e, slots) for e, slots in enumerate(groups[1:]) if slots.numel()]


def _sum_slots(per_slot: Tensor, weights: Tensor) -> Tensor:
    wide = per_slot.to(torch.promote_types(per_slot.dtype, torch.float32))
    total = wide.new_zeros(wide.shape[0], wide.shape[2])
    for k in range(wide.shape[1]):
        total += wide[:, k] * weights[:, k, None]
    return total.to(per_slot.dtype)


def _score(logits: Tensor, scoring: str) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scoring == "softmax":
        return wide.softmax(dim=-1)
    if scoring == "sigmoid":
        return elementwise(torch.sigmoid_, wide)
    if scoring == "sqrtsoftplus":
        return elementwise(_softplus_, wide).sqrt_()
    raise ValueError(f"no scoring {scoring!r}; known: softmax, sigmoid, sqrtsoftplus")


def _softplus_(x: Tensor) -> Tensor:
    return x.copy_(F.softplus(x))


def _keep_groups(ranked: Tensor, num_groups: int, top_groups: int, best: int) -> Tensor:
    grouped = ranked.view(ranked.shape[0], num_groups, ranked.shape[1] // num_groups)
    worth = grouped.topk(min(best, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
    kept = worth.sort(dim=-1, descending=True, stable=True).indices[:, :top_groups]
    is_kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, kept, True)
    return grouped.masked_fill(~is_kept.unsqueeze(-1), float("-inf")).flatten(1)
