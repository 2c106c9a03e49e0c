"""Mixtures of experts: gating, routing of rows to experts, grouped products, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.kernels.act import silu_mul
from deepinfer_ascend.kernels.quant import act

NORM_TYPES = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2}
BEST, TWO_BEST = 0, 1
"""What a group of experts is worth."""
COUNTS = 1
"""Tokens of each expert, rather than their running sums."""
ROWS, ONE_OUTPUT = 0, 3
"""Axis that groups share out, and how many tensors come of a grouped product."""
BY_TOKEN = 2
"""Places of a token's rows lie side by side, and no row is dropped."""
EPS = 1e-20


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
    if not logits.numel():
        shape = (logits.shape[0], top_k)
        return logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape).float()
    options: dict[str, object] = {
        "k": top_k,
        "k_group": top_groups,
        "group_count": num_groups,
        "group_select_mode": BEST if bias is None else TWO_BEST,
        "norm_type": NORM_TYPES[scoring],
        "eps": EPS,
    }
    if hash_ids is not None:
        tokens = torch.arange(len(hash_ids), dtype=torch.int32, device=hash_ids.device)
        options |= {"input_ids": tokens, "tid2eid": hash_ids}
    wide = logits.float()
    weights, ids = _gate(wide, bias, options)
    if image_bias is not None and is_image is not None:
        for_images = _gate(wide, image_bias, options)
        weights, ids = (
            torch.where(is_image.unsqueeze(1), image, text)
            for image, text in zip(for_images, (weights, ids), strict=True)
        )
    ids, weights = _in_order(ids, weights)
    if scoring == "softmax" and renormalize:  # of the others the operator does it in any case
        weights = weights / (weights.sum(dim=-1, keepdim=True) + EPS)
    return ids, weights * scale if scale != 1.0 else weights


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
    if not x.numel():
        return torch.empty_like(x)
    rows, places, counts = _to_experts(x, ids, len(w13), expert_map)
    hidden = silu_mul(_grouped(rows, w13, counts), limit)
    y = _grouped(hidden, w2, counts)
    return (_sum_all if expert_map is None else _sum_present)(y, weights, places)


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
    """See `deepinfer_core.ops.specs.moe.coded`, for rows that may be rounded as well."""
    if not x.numel():
        return torch.empty_like(x)
    rows, places, counts = _to_experts(x, ids, len(w13), expert_map)
    hidden = silu_mul(_grouped_codes(rows, w13, w13_scales, counts, scheme), limit)
    y = _grouped_codes(hidden, w2, w2_scales, counts, scheme)
    return _sum_present(y, weights, places)


def _gate(logits: Tensor, bias: Tensor | None, options: dict[str, object]) -> tuple[Tensor, Tensor]:
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(logits, bias=bias, **options)
    return weights, ids


def _in_order(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """By descending weight, and by ascending id among equals."""
    ids, order = ids.sort(dim=-1)
    weights, by_weight = weights.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, by_weight), weights


def _to_experts(
    x: Tensor, ids: Tensor, num_experts: int, expert_map: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows expert by expert [T * K, C], the place of each choice among them, and counts [E]."""
    if expert_map is not None:
        # Experts that are not here are one more, which is out of range, so that it gets no rows.
        ids = expert_map[ids.long()]
        ids = torch.where(ids < 0, num_experts, ids)
    rows, places, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x.contiguous(),
        ids.int().contiguous(),
        active_num=ids.numel(),
        expert_num=num_experts + (expert_map is not None),
        expert_tokens_num_type=COUNTS,
        expert_tokens_num_flag=True,
        active_expert_range=[0, num_experts],
    )
    return rows, places, counts


def _grouped(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Each expert's rows times its matrix [N, K], which the operator takes turned."""
    products: list[Tensor] = torch.ops.npu.npu_grouped_matmul(
        [rows],
        [weight.transpose(1, 2)],
        group_list=counts,
        group_list_type=COUNTS,
        group_type=ROWS,
        split_item=ONE_OUTPUT,
    )
    return products[0]


def _grouped_codes(
    rows: Tensor, codes: Tensor, scales: Tensor, counts: Tensor, scheme: str
) -> Tensor:
    """As `_grouped`, with rows rounded to codes and matrices [N, K] that are codes."""
    q, row_scales = act(rows, scheme)
    products: list[Tensor] = torch.ops.npu.npu_grouped_matmul(
        [q],
        [codes.transpose(1, 2)],
        scale=[scales.transpose(1, 2)],
        per_token_scale=[row_scales],
        group_list=counts,
        group_list_type=COUNTS,
        group_type=ROWS,
        split_item=ONE_OUTPUT,
        output_dtype=rows.dtype,
    )
    return products[0]


def _sum_all(y: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """Weighted sums where every choice has a row; the operator rounds weights as rows."""
    summed: Tensor = torch.ops.npu.npu_moe_finalize_routing(
        y, None, None, None, weights.to(y.dtype), places, None, drop_pad_mode=BY_TOKEN
    )
    return summed


def _sum_present(y: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """Weighted sums over the choices that have a row; rows behind the last of them are garbage."""
    places = places.view(weights.shape)
    chosen = y.index_select(0, places.clamp(min=0).flatten()).view(*places.shape, -1)
    weighted = chosen.float() * weights.unsqueeze(-1)
    return torch.where(places.unsqueeze(-1) >= 0, weighted, 0.0).sum(dim=1).to(y.dtype)
