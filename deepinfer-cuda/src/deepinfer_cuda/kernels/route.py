"""The choice of experts, one program per token.

A candidate is one 64-bit number, its score above its inverted id, so that the largest is the best
and the lower id among equals.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")


@triton.jit
def _ordered(x):
    """Integers in the order of float32 numbers; both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _keys(x, ids):
    return (_ordered(x).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _score(logits, mask, SCORING: tl.constexpr):
    if SCORING == "softmax":
        raised = tl.exp(logits - tl.max(tl.max(logits, axis=1), axis=0))
        return raised / tl.sum(tl.sum(raised, axis=1), axis=0)
    if SCORING == "sigmoid":
        return tl.where(mask, 1.0 / (1.0 + tl.exp(-logits)), 0.0)
    # log(1 + e), which loses the digits of a small e, times what that loses (Kahan 1987).
    e = tl.exp(tl.minimum(logits, 20.0))
    sum_ = 1.0 + e
    log = tl.where(sum_ == 1.0, e, tl.log(sum_) * (e / tl.where(sum_ == 1.0, 1.0, sum_ - 1.0)))
    return tl.where(mask, tl.sqrt(tl.where(logits > 20.0, logits, log)), 0.0)


@triton.jit
def _route(
    logits_ptr,
    bias_ptr,
    image_bias_ptr,
    is_image_ptr,
    hash_ids_ptr,
    ids_ptr,
    weights_ptr,
    logits_stride,
    num_groups,
    group_size,
    top_groups,
    scale,
    SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_IMAGES: tl.constexpr,
    HAS_HASH: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    lowest = float("-inf")
    # LAYOUT: [GROUPS, GROUP_SIZE] experts, padded on both axes.
    groups = tl.arange(0, GROUPS)
    members = tl.arange(0, GROUP_SIZE)
    is_group = groups < num_groups
    mask = is_group[:, None] & (members < group_size)[None, :]
    experts = groups[:, None] * group_size + members[None, :]
    experts = tl.where(mask, experts, 0x7FFFFFFF)
    source = logits_ptr + token * logits_stride + experts
    logits = tl.load(source, mask=mask, other=lowest).to(tl.float32)
    scores = _score(logits, mask, SCORING)
    slots = tl.arange(0, SLOTS)
    chosen = tl.full([SLOTS], 0x7FFFFFFF, tl.int32)
    weights = tl.full([SLOTS], lowest, tl.float32)
    ranked = scores
    if not HAS_HASH:
        if HAS_BIAS:
            bias = tl.load(bias_ptr + experts, mask=mask, other=0.0)
            if HAS_IMAGES:
                image_bias = tl.load(image_bias_ptr + experts, mask=mask, other=0.0)
                bias = tl.where(tl.load(is_image_ptr + token) != 0, image_bias, bias)
            ranked = scores + bias
        ranked = tl.where(mask, ranked, lowest)
        if GROUPS > 1:
            worth = tl.max(ranked, axis=1)
            if HAS_BIAS:
                best = tl.max(_keys(ranked, experts), axis=1)
                others = tl.where(_keys(ranked, experts) == best[:, None], lowest, ranked)
                second = tl.max(others, axis=1)
                worth += tl.where(group_size > 1, second, 0.0)
            values = _keys(tl.where(is_group, worth, lowest), groups)
            rank = tl.sum((values[None, :] > values[:, None]).to(tl.int32), axis=1)
            ranked = tl.where((rank < top_groups)[:, None], ranked, lowest)
    keys = _keys(ranked, experts)
    for k in tl.static_range(TOP_K):
        if HAS_HASH:
            expert = tl.load(hash_ids_ptr + token * TOP_K + k)
        else:
            best = tl.max(tl.max(keys, axis=1), axis=0)
            expert = 0x7FFFFFFF - (best & 0xFFFFFFFF).to(tl.int32)
            # Below every candidate, those of groups that are out among them.
            keys = tl.where(experts == expert, -0x8000000000000000, keys)
        score = tl.sum(tl.sum(tl.where(experts == expert, scores, 0.0), axis=1), axis=0)
        chosen = tl.where(slots == k, expert, chosen)
        weights = tl.where(slots == k, score, weights)
    own = _keys(weights, chosen)
    # Equal keys are of one expert that a table names twice.
    is_ahead = own[None, :] > own[:, None]
    is_ahead = is_ahead | ((own[None, :] == own[:, None]) & (slots[None, :] < slots[:, None]))
    place = tl.sum(is_ahead.to(tl.int32), axis=1)
    is_slot = slots < TOP_K
    if RENORMALIZE:
        weights = weights / (tl.sum(tl.where(is_slot, weights, 0.0), axis=0) + 1e-20)
    tl.store(ids_ptr + token * TOP_K + place, chosen, mask=is_slot)
    tl.store(weights_ptr + token * TOP_K + place, weights * scale, mask=is_slot)


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
    if scoring not in SCORINGS:
        raise ValueError(f"no scoring {scoring!r}; known: {', '.join(SCORINGS)}")
    num_tokens, num_experts = logits.shape
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    if not num_tokens:
        return ids, weights
    has_images = bias is not None and image_bias is not None and is_image is not None
    group_size = num_experts // num_groups
    _route[(num_tokens,)](
        logits,
        logits if bias is None else bias,
        image_bias if has_images else logits,
        is_image.view(torch.uint8) if has_images and is_image is not None else logits,
        logits if hash_ids is None else hash_ids.contiguous(),
        ids,
        weights,
        logits.stride(0),
        num_groups,
        group_size,
        top_groups,
        scale,
        SCORING=scoring,
        HAS_BIAS=bias is not None,
        HAS_IMAGES=has_images,
        HAS_HASH=hash_ids is not None,
        RENORMALIZE=renormalize,
        TOP_K=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        GROUPS=triton.next_power_of_2(num_groups),
        GROUP_SIZE=triton.next_power_of_2(group_size),
        num_warps=1,
        **overlap(logits.device),
    )
    return ids, weights
