"""References of the quantisation of activations, and the schemes they share with the products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.reference.records import MIN_AMAX, pow2_ceil
from deepinfer_core.ops.reference.records import decode as decode
from deepinfer_core.ops.reference.records import encode as encode


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a row becomes small numbers and scales."""

    dtype: torch.dtype
    qmax: float
    group: int | None
    """Elements that share a scale; None = the row."""
    is_power: bool = False
    """Scales are powers of two."""


SCHEMES = {
    "int8_token": Scheme(torch.int8, 127.0, None),
    "fp8_token": Scheme(torch.float8_e4m3fn, 448.0, None),
    "fp8_block128": Scheme(torch.float8_e4m3fn, 448.0, 128),
    "fp8_block128_ue8m0": Scheme(torch.float8_e4m3fn, 448.0, 128, is_power=True),
    "fp8_block32_ue8m0": Scheme(torch.float8_e4m3fn, 448.0, 32, is_power=True),
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
    if how.is_power:
        scales, _ = pow2_ceil(amax.clamp_(min=MIN_AMAX) / how.qmax)
    else:
        scales = torch.where(amax > 0, amax / how.qmax, 1.0)
    scaled = (wide / scales).clamp_(-how.qmax, how.qmax)
    if how.dtype == torch.int8:
        scaled.round_()
    q = scaled.to(how.dtype).flatten(1)[:, :width].contiguous()
    return q, scales.flatten(1 if how.group else 0)
