"""Cases of the mixture-of-experts ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.cases.act import LIMIT, gated

ROUTES: dict[str, dict[str, Any]] = {
    "softmax": {"renormalize": False},
    "renormalize": {},
    "sigmoid": {"scoring": "sigmoid"},
    "sqrtsoftplus": {"scoring": "sqrtsoftplus", "scale": 1.5},
    "bias": {"scoring": "sigmoid", "bias": True, "scale": 2.5},
    "groups": {"renormalize": False, "num_groups": 4, "top_groups": 2},
    "hash": {"scoring": "sqrtsoftplus", "hash_ids": True, "scale": 1.5},
    "image-bias": {"scoring": "sqrtsoftplus", "bias": True, "image_bias": True},
    "groups-bias": {"scoring": "sigmoid", "bias": True, "num_groups": 4, "top_groups": 2},
}


def route_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_experts, top_k in ((64, 6), (8, 2)):
        num_experts = sizes.pick("num_experts", num_experts)
        top_k = sizes.pick("top_k", top_k)
        shape = {"num_experts": num_experts, "top_k": top_k}
        for name, options in ROUTES.items():
            if num_experts % 4 or num_experts // 4 * 2 < top_k:
                continue
            features = {
                feature for feature in ("bias", "image_bias", "hash_ids") if options.get(feature)
            }
            features |= {options["scoring"]} if options.get("scoring") else set()
            features |= {"groups"} if "num_groups" in options else set()
            features |= {"renormalize"} if options.get("renormalize", True) else set()
            build = partial(_route, num_experts, top_k, options)
            cases.append(Case(f"{num_experts}to{top_k}-{name}", build, frozenset(features), shape))
    return list({case.name: case for case in cases}.values())


def experts_cases(sizes: Sizes) -> Sequence[Case]:
    shape = {
        "hidden_size": sizes.pick("hidden_size", 64),
        "intermediate_size": sizes.pick("intermediate_size", 48),
        "num_experts": sizes.pick("num_experts", 8),
        "top_k": sizes.pick("top_k", 3),
    }
    variants: dict[str, frozenset[str]] = {
        "plain": frozenset(),
        "limit": frozenset({"limit"}),
        "expert_map": frozenset({"expert_map"}),
    }
    return [
        Case(name, partial(_experts, shape, features), features, shape)
        for name, features in variants.items()
    ]


def _route(
    num_experts: int, top_k: int, options: dict[str, Any], make: Maker, num_tokens: int
) -> Call:
    # Distinct multiples of 1/8 are exact in every dtype and never tie by rounding; the last
    # rows tie on purpose.
    order = torch.stack(
        [make.permutation(num_experts) for _ in range(num_tokens)] or [torch.empty(0, num_experts)]
    )
    logits = (order.view(num_tokens, num_experts).float() - num_experts / 2) / 8
    logits[num_tokens // 2 + 1 :] = (logits[num_tokens // 2 + 1 :] * 2).round() / 2
    logits = logits.to(make.dtype).to(make.device)
    call = {**options, "logits": logits, "top_k": top_k}
    if options.get("bias"):
        call["bias"] = (make.permutation(num_experts).float() / 64).to(make.device)
    if options.get("image_bias"):
        call["image_bias"] = (make.permutation(num_experts).float() / 64).to(make.device)
        call["is_image"] = make.integers(0, 2, num_tokens, dtype=torch.int32).bool()
    if options.get("hash_ids"):
        picks = [make.permutation(num_experts)[:top_k] for _ in range(num_tokens)]
        call["hash_ids"] = torch.stack([*picks, make.permutation(num_experts)[:top_k]])[:-1].int()
    ids, weights = _route_rows(logits, call)
    return Call(call, [ids, weights])


def _route_rows(logits: Tensor, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Route row by row with sorted lists."""
    top_k, num_groups = call["top_k"], call.get("num_groups", 1)
    bias = call.get("bias")
    bias_list = [0.0] * logits.shape[1] if bias is None else bias.tolist()
    is_image = call["is_image"].tolist() if "is_image" in call else [False] * len(logits)
    best = 1 if bias is None else 2
    all_ids: list[list[int]] = []
    all_weights: list[Tensor] = []
    for row in wide(logits):
        scores = _score(row, call.get("scoring", "softmax")).tolist()
        offsets = call["image_bias"].tolist() if is_image[len(all_ids)] else bias_list
        ranked = [score + offset for score, offset in zip(scores, offsets, strict=True)]
        size = len(ranked) // num_groups
        worth = [
            sum(sorted(ranked[g * size : (g + 1) * size], reverse=True)[:best])
            for g in range(num_groups)
        ]
        groups = sorted(range(num_groups), key=lambda g: (-worth[g], g))
        kept = groups[: call.get("top_groups", 1)]
        able = [e for e in range(len(ranked)) if e // size in kept]
        chosen = sorted(able, key=lambda e: (-ranked[e], e))[:top_k]
        if call.get("hash_ids") is not None:
            chosen = call["hash_ids"][len(all_ids)].tolist()
        chosen.sort(key=lambda e: (-scores[e], e))
        weights = torch.tensor([scores[e] for e in chosen], dtype=torch.float64)
        if call.get("renormalize", True):
            weights = weights / weights.sum()
        all_ids.append(chosen)
        all_weights.append(weights * call.get("scale", 1.0))
    shape = (len(all_ids), top_k)
    ids = torch.tensor(all_ids, dtype=torch.int32).view(shape)
    return ids, torch.cat([*all_weights, torch.empty(0, dtype=torch.float64)]).view(shape)


def _score(row: Tensor, scoring: str) -> Tensor:
    if scoring == "softmax":
        return row.softmax(dim=-1)
    if scoring == "sigmoid":
        return 1 / (1 + (-row).exp())
    return (1 + row.exp()).log().sqrt()


def _experts(shape: dict[str, int], features: frozenset[str], make: Maker, num_tokens: int) -> Call:
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    num_experts, top_k = shape["num_experts"], shape["top_k"]
    x = make.rows(num_tokens, hidden)
    w13 = make.normal(num_experts, 2 * ffn, hidden, scale=hidden**-0.5)
    w2 = make.normal(num_experts, hidden, ffn, scale=ffn**-0.5)
    expert_map, local = None, list(range(num_experts))
    if "expert_map" in features:
        # Twice as many experts, every second of which is here, in reverse.
        local = [(num_experts - 1 - e // 2) if e % 2 else -1 for e in range(2 * num_experts)]
        expert_map = torch.tensor(local, dtype=torch.int32, device=make.device)
    picks = [make.permutation(len(local))[:top_k] for _ in range(num_tokens)]
    ids = torch.stack(picks or [torch.empty(0, top_k, device=make.device)]).int()
    ids = ids.view(num_tokens, top_k)
    weights = make.normal(num_tokens, top_k, dtype=torch.float32).abs()
    limit = LIMIT if "limit" in features else None
    y = torch.zeros(num_tokens, hidden, dtype=torch.float64)
    for t in range(num_tokens):
        for k in range(top_k):
            expert = local[int(ids[t, k])]
            if expert >= 0:
                gate, up = (wide(w13[expert]) @ wide(x[t])).chunk(2)
                out = wide(w2[expert]) @ gated(gate, up, limit)
                y[t] += out * float(weights[t, k])
    kwargs = {
        "x": x,
        "ids": ids,
        "weights": weights,
        "w13": w13,
        "w2": w2,
        "limit": limit,
        "expert_map": expert_map,
    }
    return Call(kwargs, [y])


OPS = {
    "moe.route": OpCases(route_cases, rows=("logits", "hash_ids", "is_image")),
    "moe.experts": OpCases(experts_cases, rows=("x", "ids", "weights")),
}
