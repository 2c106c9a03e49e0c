"""The ceiling: a model's own matrix products alone, in a step's order, and nothing else.

What a perfect engine would reach with the kernels that serve this model now.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.moe import SparseMoE


@dataclass(frozen=True, slots=True)
class GemmSpeed:
    """One pass over all products of a model, at some number of tokens."""

    batch_size: int
    median_ms: float
    best_ms: float


@dataclass(frozen=True, slots=True)
class _Product:
    """One call and the width of its input."""

    run: Callable[[Tensor], object]
    in_features: int


def gemm_ceiling(
    model: Any, batch_sizes: Sequence[int], *, repeats: int = 7
) -> dict[int, GemmSpeed]:
    """Time all matrix products of a model, head included, for steps of so many tokens.

    Args:
        model: a decoder with weights in place.
        batch_sizes: tokens of the steps; in decoding, requests.

    Returns:
        By batch size. Blocks for `repeats` passes each; passes of different sizes take turns, so
        that a busy moment of the machine does not fall on one of them.
    """
    products = _products(model)
    device = next(model.parameters()).device
    inputs = {
        size: {
            width: torch.randn(size, width, device=device).to(model.dtype)
            for width in {product.in_features for product in products}
        }
        for size in batch_sizes
    }
    times: dict[int, list[float]] = {size: [] for size in batch_sizes}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for size in batch_sizes:
                times[size].append(_pass_s(products, inputs[size]))
    return {
        size: GemmSpeed(size, statistics.median(each[1:]) * 1e3, min(each[1:]) * 1e3)
        for size, each in times.items()
    }


def _pass_s(products: list[_Product], inputs: dict[int, Tensor]) -> float:
    begun = time.perf_counter()
    last: object = None
    for product in products:
        last = product.run(inputs[product.in_features])
    if isinstance(last, Tensor) and last.device.type != "cpu":
        last[0, 0].item()  # SYNC: work on a device has ended only when a result is here
    return time.perf_counter() - begun


def _products(model: Any) -> list[_Product]:
    """In the order of the model's layers; the head, which ends every step, last."""
    found = [
        _Product(_expert_call(module) if isinstance(module, SparseMoE) else module, width)
        for module in model.modules()
        if (width := _in_features(module)) is not None
    ]
    return [*found, _Product(model.compute_logits, model.config.hidden_size)]


def _in_features(module: nn.Module) -> int | None:
    if isinstance(module, Linear):
        return module.weight.shape[1]
    return module.experts.w2.shape[1] if isinstance(module, SparseMoE) else None


def _expert_call(layer: SparseMoE) -> Callable[[Tensor], object]:
    """The experts alone, each token at different ones, chosen at random."""
    num_experts = layer.experts.w2.shape[0]

    def run(x: Tensor) -> object:
        ids = torch.rand(x.shape[0], num_experts, device=x.device).topk(layer.top_k).indices
        weights = torch.full(ids.shape, 1.0 / layer.top_k, device=x.device)
        return layer.experts(x, ids.to(torch.int32), weights)

    return run
