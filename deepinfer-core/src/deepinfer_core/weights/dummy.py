"""Random weights of realistic size, for running a model whose weights are not at hand.

The numbers depend on the tensor's name and the kind of device, on nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

BIAS_STD = 0.02


def fill_dummy(
    views: Mapping[str, Tensor], progress: Callable[[str, int], None] | None = None
) -> None:
    """Fill every tensor in place: norms with 1, biases with little, matrices by fan-in.

    With a standard deviation of 1 / sqrt(fan-in) every layer keeps the size of its input, and
    logits get a standard deviation near 1.
    """
    for name, view in views.items():
        if view.dim() == 1 and name.endswith("norm.weight"):
            view.fill_(1.0)
        else:
            std = BIAS_STD if view.dim() == 1 else 1.0 / math.sqrt(view.shape[-1])
            view.normal_(0.0, std, generator=_generator(name, view.device))
        if progress is not None:
            progress(name, view.nbytes)


def _generator(name: str, device: torch.device) -> torch.Generator:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return torch.Generator(device=device).manual_seed(seed >> 1)
