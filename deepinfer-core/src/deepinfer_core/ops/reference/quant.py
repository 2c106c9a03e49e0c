"""References of the quantisation of activations, and the schemes they share with the products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.records import decode as decode
from deepinfer_core.ops.reference.records import encode as encode

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a row becomes small numbers and scales."""

    dtype: torch.dtype
    qmax: float
    group: int | None
    """Elements that share a scale; None = the row."""


SCHEMES = {
    "int8_token": Scheme(torch.int8, 127.0, None),
    "fp8_token": Scheme(torch.float8_e4m3fn, 448.0, None),
    "fp8_block128": Scheme(torch.float8_e4m3fn, 448.0, BLOCK),
}


def find_scheme(name: str) -> Scheme:
    """Look up a scheme.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SCHEMES:
        raise ValueError(f"no quantisation scheme {name!r}; known: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.quant.act`."""
    how = find_scheme(scheme)
    rows, width = x.shape
    group = how.group or max(width, 1)
    num_groups = -(-width // group)
    wide = F.pad(x.float(), (0, num_groups * group - width)).view(rows, num_groups, group)
    amax = wide.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(amax > 0, amax / how.qmax, 1.0)
    scaled = (wide / scales).clamp_(-how.qmax, how.qmax)
    if how.dtype == torch.int8:
        scaled.round_()
    q = scaled.to(how.dtype).flatten(1)[:, :width].contiguous()
    return q, scales.flatten(1 if how.group else 0)
