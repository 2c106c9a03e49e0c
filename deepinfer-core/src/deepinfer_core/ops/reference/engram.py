"""References of the n-gram memory. A token's bits do not depend on its batch."""

from __future__ import annotations

import torch
from torch import Tensor, dtype

from deepinfer_core.ops.reference.codes import GROUP, powers_of_two
from deepinfer_core.ops.reference.lanes import elementwise

SMALLEST_DOT = 1e-6


def lookup(
    tokens: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    table: Tensor,
    scales: Tensor | None,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.engram.lookup`."""
    sizes = primes.flatten()
    firsts = (sizes.cumsum(0) - sizes).view(primes.shape)
    rolled = tokens[:, 0] * multipliers[0]
    rows = []
    for place in range(1, tokens.shape[1]):
        rolled = rolled ^ (tokens[:, place] * multipliers[place])
        rows.append(rolled.unsqueeze(1) % primes[place - 1] + firsts[place - 1])
    picked = torch.cat(rows, dim=1)
    numbers = _gather(table, picked)
    if scales is None:
        return numbers.to(out_dtype).flatten(1)
    factors = powers_of_two(_gather(scales.view(torch.uint8), picked))
    factors = factors.repeat_interleave(GROUP, dim=2)[..., : table.shape[1]]
    return (numbers.float() * factors).to(out_dtype).flatten(1)


def gate(
    streams: Tensor,
    keys: Tensor,
    values: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    skip: Tensor | None = None,
) -> Tensor:
    """See `deepinfer_core.ops.specs.engram.gate`."""
    wide, wide_keys = streams.float(), keys.float()
    products = wide * (q_weight.float() * k_weight.float()) * wide_keys
    size = streams.shape[2]
    dots = products.sum(dim=2) * torch.rsqrt(wide.square().sum(dim=2) / size + eps)
    dots = dots * torch.rsqrt(wide_keys.square().sum(dim=2) / size + eps) * size**-0.5
    roots = torch.copysign(dots.abs().clamp_min(SMALLEST_DOT).sqrt(), dots)
    gates = elementwise(torch.sigmoid_, roots)
    if skip is not None:
        gates = gates.masked_fill(skip.unsqueeze(1), 0.0)
    return (wide + gates.unsqueeze(2) * values.float().unsqueeze(1)).to(streams.dtype)


def _gather(table: Tensor, rows: Tensor) -> Tensor:
    """[R, D], [T, n] -> [T, n, D] in the dtype of the table."""
    # Codes as bytes, since not every device gathers them as numbers.
    raw = table.view(torch.uint8) if table.dtype.itemsize == 1 else table
    picked = raw.index_select(0, rows.flatten()).view(*rows.shape, raw.shape[1])
    return picked.view(table.dtype)
