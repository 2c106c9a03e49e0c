"""Random weights of realistic size, for running a model whose weights are not at hand.

The numbers depend on the tensor's name and the kind of device, on nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from deepinfer_core.parallel.mesh import Share
from deepinfer_core.weights.shares import whole_tensors
from deepinfer_core.weights.stored import holds_codes

BIAS_STD = 0.02
FP8_STD = 32.0
"""Of e4m3 codes: far from their largest and from their smallest."""
FP4_STD = 2.926
"""Of e2m1 codes when all are equally likely."""
STRIPE_ELEMENTS = 1 << 22
"""Drawn at once where numbers become codes."""


def fill_dummy(
    views: Mapping[str, Tensor],
    shares: Mapping[str, Share] | None = None,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> None:
    """Fill every tensor in place: norms with 1, biases with little, matrices by fan-in.

    With a standard deviation of 1 / sqrt(fan-in) every layer keeps the size of its input, and
    logits get a standard deviation near 1. Codes and their scales mean such numbers too.

    Args:
        shares: which views are of a part; they get that part of what the whole tensor would get.
    """
    shares = shares or {}
    others = whole_tensors(views, shares)
    for name, view in views.items():
        generator = generator_of(name, view.device)
        if name not in shares:
            fill_one(name, view, others, generator)
        else:
            whole = torch.empty_like(others[name], device=view.device)
            fill_one(name, whole, others, generator)
            view.copy_(shares[name].part_of(whole))
        if progress is not None:
            progress(name, view.nbytes)


def fill_one(
    name: str, view: Tensor, others: Mapping[str, Tensor], generator: torch.Generator
) -> None:
    """Fill a tensor, or some of its rows.

    Args:
        others: all of the model's, which say what a scale belongs to, and how many experts a
            table of experts may name; only their shapes and dtypes are looked at.
    """
    codes = others.get(codes_of_scale(name))
    if codes is not None and holds_codes(codes):
        _fill_scale(view, codes)
    elif view.dtype == torch.float8_e4m3fn:
        _fill_fp8(view, generator)
    elif holds_codes(view):
        view.view(torch.uint8).random_(0, 256, generator=generator)
    elif not view.is_floating_point():
        num_experts = others[f"{name.rpartition('.')[0]}.weight"].shape[0]
        first = torch.empty_like(view[:, :1]).random_(0, num_experts, generator=generator)
        view.copy_((first + torch.arange(view.shape[1], device=view.device)) % num_experts)
    elif view.dim() == 1 and name.endswith("norm.weight"):
        view.fill_(1.0)
    else:
        std = BIAS_STD if view.dim() == 1 else 1.0 / math.sqrt(view.shape[-1])
        view.normal_(0.0, std, generator=generator)


def generator_of(name: str, device: torch.device) -> torch.Generator:
    """The generator that draws a tensor's numbers."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return torch.Generator(device=device).manual_seed(seed >> 1)


def codes_of_scale(name: str) -> str:
    """Which matrix a tensor would scale, by its name; it may not exist."""
    if name.endswith("_scale_inv"):
        return name.removesuffix("_scale_inv")
    return f"{name.removesuffix('.scale')}.weight"


def _fill_scale(view: Tensor, codes: Tensor) -> None:
    is_fp8 = codes.dtype == torch.float8_e4m3fn
    fan_in = codes.shape[1] if is_fp8 else 2 * codes.shape[1]
    exponent = round(-math.log2((FP8_STD if is_fp8 else FP4_STD) * math.sqrt(fan_in)))
    if holds_codes(view):
        view.view(torch.uint8).fill_(exponent + 127)
    else:
        view.fill_(2.0**exponent)


def _fill_fp8(view: Tensor, generator: torch.Generator) -> None:
    step = max(1, STRIPE_ELEMENTS // view.shape[-1])
    for first in range(0, view.shape[0], step):
        stripe = view[first : first + step]
        numbers = torch.empty(stripe.shape, device=view.device)
        stripe.copy_(numbers.normal_(0.0, FP8_STD, generator=generator))
