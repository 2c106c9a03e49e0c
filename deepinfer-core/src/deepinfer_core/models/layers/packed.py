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

from deepinfer_core.ops.reference.codes import FP8_BLOCKS, GROUP, MXFP4
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import Share
from deepinfer_core.plugin_api.kernel import Problem


@runtime_checkable
class Packed(Protocol):
    """A layer whose parameters hold several checkpoint tensors."""

    def unpacked(self, path: str) -> Iterator[tuple[str, Tensor]]:
        """Yield (checkpoint name, view of a parameter) for every tensor of this layer.

        Args:
            path: of the layer in the model, such as `model.layers.0.self_attn.qkv_proj`.
        """
        ...


@runtime_checkable
class Shared(Protocol):
    """A layer that may hold a share of its tensors, the rest being other ranks'."""

    def share_of(self, name: str) -> Share:
        """Which part of a checkpoint tensor this layer holds, by the model's own name."""
        ...


class Stored(nn.Module):
    """What a checkpoint fills: a model, or a drafter beside one."""

    def is_redundant(self, name: str) -> bool:
        """Whether a checkpoint tensor repeats what the module has or computes itself, or is of no
        part of it."""
        return False


@runtime_checkable
class HoldsCodes(Protocol):
    """A layer whose weights may stay codes with scales, as quantised checkpoints hold them."""

    def takes_codes(self, scheme: str) -> bool:
        """Whether the layer's matrices can lie in one parameter with scales of this scheme."""
        ...

    def coded_problem(self, scheme: str) -> Problem:
        """What it would ask of the op that multiplies with codes."""
        ...

    def keep_codes(self, ops: OpTable, problem: Problem) -> None:
        """Hold codes from now on. Before weights are loaded; parameters stay on meta.

        Args:
            ops: not frozen.
            problem: that of `coded_problem`, possibly with permissions.
        """
        ...


def checkpoint_views(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that the model wants from a checkpoint: name -> where it goes.

    The views alias the parameters; on the meta device they still have shapes and dtypes. A model
    whose checkpoints use other names says so in `stored_name`. A view may be of a share alone, see
    `checkpoint_shares`.
    """
    stored_name: Callable[[str], str] = getattr(model, "stored_name", str)
    views: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        views.update(module_views(path, module))
    return {stored_name(name): view for name, view in views.items()}


def checkpoint_shares(model: nn.Module) -> dict[str, Share]:
    """Of what a mesh divides: checkpoint name -> which part of the tensor its view is."""
    stored_name: Callable[[str], str] = getattr(model, "stored_name", str)
    shares: dict[str, Share] = {}
    for path, module in model.named_modules():
        names = [name for name, _ in module_views(path, module)]
        if isinstance(module, Shared):
            for name in names:
                if (share := module.share_of(name)).count > 1:
                    shares[stored_name(name)] = share
    return shares


def module_views(path: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one layer, without those below it, under the model's own names."""
    if isinstance(module, Packed):
        yield from module.unpacked(path)
        return
    for name, parameter in module.named_parameters(prefix=path, recurse=False):
        yield name, parameter.data


def empty_parameter(*shape: int, dtype: str) -> nn.Parameter:
    """An unfilled parameter on the current default device; never trained."""
    return nn.Parameter(torch.empty(shape, dtype=getattr(torch, dtype)), requires_grad=False)


def coded_parameters(shape: tuple[int, ...], scheme: str) -> tuple[nn.Parameter, nn.Parameter]:
    """Unfilled codes and scales on the meta device, for matrices [..., N, K]."""
    *lead, rows, columns = shape
    with torch.device("meta"):
        if scheme == MXFP4:
            codes = empty_parameter(*lead, rows, columns // 2, dtype="uint8")
            return codes, empty_parameter(*lead, rows, columns // GROUP, dtype="uint8")
        side = FP8_BLOCKS[scheme]
        codes = empty_parameter(*shape, dtype="float8_e4m3fn")
        grid = -(-rows // side), -(-columns // side)
        return codes, empty_parameter(*lead, *grid, dtype="float32")


def rows_per_scale(scheme: str) -> int:
    """Rows of a matrix that share a scale."""
    return FP8_BLOCKS.get(scheme, 1)


def columns_per_scale(scheme: str) -> int:
    """Columns of a matrix that share a scale."""
    return FP8_BLOCKS.get(scheme, GROUP)
