"""How checkpoint tensors map onto a model's parameters.

A layer that fuses several checkpoint tensors into one parameter implements `Packed`; every other
parameter has the checkpoint's own name. The loader writes into the views given here, so a fused
weight is never assembled from copies. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Packed(Protocol):
    """A layer whose parameters hold several checkpoint tensors."""

    def unpacked(self, path: str) -> Iterator[tuple[str, Tensor]]:
        """Yield (checkpoint name, view of a parameter) for every tensor of this layer.

        Args:
            path: of the layer in the model, such as `model.layers.0.self_attn.qkv_proj`.
        """
        ...


class Stored(nn.Module):
    """What a checkpoint fills: a model, or a drafter beside one."""

    def is_redundant(self, name: str) -> bool:
        """Whether a checkpoint tensor repeats what the module has or computes itself, or is of no
        part of it."""
        return False


def checkpoint_views(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that the model wants from a checkpoint: name -> where it goes.

    The views alias the parameters; on the meta device they still have shapes and dtypes. A model
    whose checkpoints use other names says so in `stored_name`.
    """
    stored_name: Callable[[str], str] = getattr(model, "stored_name", str)
    views: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, Packed):
            views.update(module.unpacked(path))
        else:
            own = module.named_parameters(prefix=path, recurse=False)
            views.update((name, parameter.data) for name, parameter in own)
    return {stored_name(name): view for name, view in views.items()}


def empty_parameter(*shape: int, dtype: str) -> nn.Parameter:
    """An unfilled parameter on the current default device; never trained."""
    return nn.Parameter(torch.empty(shape, dtype=getattr(torch, dtype)), requires_grad=False)
