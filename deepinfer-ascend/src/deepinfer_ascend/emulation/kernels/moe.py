"""Gating, routing and grouped products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer_ascend.emulation import play
from deepinfer_ascend.emulation.kernels.products import DTYPES, E4M3, blocked, blocked_weight
from deepinfer_ascend.emulation.registry import emulates, require


@emulates("npu_moe_gating_top_k")
def moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    norm_type: int = 0,
    eps: float = 1e-20,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    require(not others, f"what is emulated, not {sorted(others)}")
    require(bias is None or bias.dtype == x.dtype, "a bias of the dtype of the logits")
    require(norm_type < 2 or "sqrtsoftplus" in play.soc().features, "a 950 for this scoring")
    require(x.shape[1] <= 2048 and x.shape[1] % group_count == 0, "at most 2048 experts")
    wide = x.float()
    scores = (wide.softmax(-1), wide.sigmoid(), F.softplus(wide).sqrt())[norm_type]
    if tid2eid is None:
        ids = _choose(scores, bias, k, k_group, group_count, group_select_mode)
    else:
        require("sqrtsoftplus" in play.soc().features, "a 950 for choices made beforehand")
        ids = tid2eid[input_ids]
    weights = scores.gather(1, ids.long())
    if norm_type:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return weights.to(x.dtype), ids.int(), torch.empty(0)


def _choose(
    scores: Tensor, bias: Tensor | None, k: int, k_group: int, group_count: int, mode: int
) -> Tensor:
    ranked = scores if bias is None else scores + bias
    if group_count > 1:
        groups = ranked.view(len(ranked), group_count, -1)
        worth = groups.topk(1 + mode, dim=-1).values.sum(-1)
        kept = worth.sort(dim=-1, descending=True, stable=True).indices[:, :k_group]
        hidden = torch.ones_like(worth, dtype=torch.bool).scatter_(1, kept, False)
        ranked = groups.masked_fill(hidden.unsqueeze(-1), -float("inf")).flatten(1)
    return ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]


@emulates("npu_moe_init_routing_v2")
def moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    active_num: int = -1,
    expert_num: int = -1,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    active_expert_range: Sequence[int] = (),
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require(not others, f"what is emulated, not {sorted(others)}")
    require(expert_idx.dtype == torch.int32 and active_num == expert_idx.numel(), "int32 ids, all")
    require(expert_tokens_num_flag and expert_tokens_num_type == 1, "counts of tokens")
    first, end = active_expert_range
    require(bool((expert_idx < expert_num).all() and (expert_idx >= 0).all()), "ids of experts")
    flat = expert_idx.flatten().long()
    order = flat.argsort(stable=True)
    num_active = int(((flat >= first) & (flat < end)).sum())
    require(first == 0, "a range that begins with the first expert")
    rows = torch.full((flat.numel(), x.shape[1]), float("nan"), dtype=x.dtype)
    rows[:num_active] = x[order[:num_active] // expert_idx.shape[1]]
    places = torch.full_like(flat, -1)
    places[order[:num_active]] = torch.arange(num_active)
    return rows, places.int(), flat.bincount(minlength=end)[:end], torch.empty(0)


@emulates("npu_grouped_matmul")
def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    scale: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None,
    output_dtype: int | None = None,
    group_list: Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    **others: Any,
) -> list[Tensor]:
    require(not others, f"what is emulated, not {sorted(others)}")
    require((split_item, group_type, group_list_type) == (3, 0, 1), "one output, counts of rows")
    (rows,), (matrices,) = x, weight
    require(group_list is not None and group_list.dtype == torch.int64, "int64 counts")
    require(rows.is_contiguous() and rows.dtype == matrices.dtype, "contiguous rows of one dtype")
    is_turned = matrices.transpose(1, 2).is_contiguous()
    require(matrices.is_contiguous() or is_turned, "matrices that are contiguous or turned")
    dtype = rows.dtype if output_dtype is None else DTYPES[output_dtype]
    require((scale is None) == (rows.dtype != E4M3), "codes with scales, or numbers without")
    if scale is not None and per_token_scale is not None:
        require("fp8" in play.soc().features, "a 950 for fp8")
        rows = blocked(rows, per_token_scale[0])
        matrices = blocked_weight(matrices, scale[0])
    y = torch.full((rows.shape[0], matrices.shape[2]), float("nan"), dtype=dtype)
    first = 0
    assert group_list is not None
    for expert, count in enumerate(group_list.tolist()):
        part = rows[first : first + count].float() @ matrices[expert].float()
        y[first : first + count] = part.to(y.dtype)
        first += count
    return [y]


@emulates("npu_moe_finalize_routing")
def moe_finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    del export_for_source_row, k
    require(skip1 is None and skip2 is None and bias is None, "what is emulated")
    rows = expanded_permuted_rows
    require(drop_pad_mode == 2 and bool((expanded_src_to_dst_row >= 0).all()), "no dropped rows")
    require(scales is not None and scales.dtype == rows.dtype, "scales of the dtype of the rows")
    assert scales is not None
    chosen = rows[expanded_src_to_dst_row.long()].view(*scales.shape, -1)
    return (chosen.float() * scales.float().unsqueeze(-1)).sum(1).to(rows.dtype)
