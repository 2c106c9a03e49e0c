"""What programs in Triton serve: on an NPU with triton-ascend, on a CPU in the interpreter."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepinfer_ascend.kernels import programs

MAX_PROGRAMS = 40
"""Vector cores of the smaller chips: more programs would wait for one another."""
SMALLEST_DOT = 1e-6
MAX_POOLED = 1024
"""Columns that a program pools at once."""


def layer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `deepinfer_core.ops.specs.norm.layer`."""
    num_rows, size = x.shape
    y = x.new_empty(num_rows, size)
    total = None if residual is None else torch.empty_like(y)
    if num_rows:
        programs.layer_norm[_grid(num_rows)](
            x,
            x if residual is None else residual,
            x if weight is None else weight,
            x if bias is None else bias,
            y,
            y if total is None else total,
            num_rows,
            size,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            eps,
            HAS_RESIDUAL=residual is not None,
            HAS_WEIGHT=weight is not None,
            HAS_BIAS=bias is not None,
            BLOCK=triton.next_power_of_2(size),
        )
    return y, total


def collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.collapse`."""
    num_rows, num_streams, size = streams.shape
    y = streams.new_empty(num_rows, size)
    if num_rows:
        programs.collapse[_grid(num_rows)](
            streams.contiguous(),
            weights.contiguous(),
            y,
            num_rows,
            size,
            NUM_STREAMS=num_streams,
            BLOCK=triton.next_power_of_2(size),
        )
    return y


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
    num_rows, num_streams, size = streams.shape
    y = torch.empty_like(streams, memory_format=torch.contiguous_format)
    if num_rows:
        programs.gate[_grid(num_rows)](
            streams.contiguous(),
            keys.contiguous(),
            values.contiguous(),
            q_weight.contiguous(),
            k_weight.contiguous(),
            y if skip is None else skip.to(torch.int8),
            y,
            num_rows,
            size,
            eps,
            size**-0.5,
            SMALLEST_DOT,
            NUM_STREAMS=num_streams,
            HAS_SKIP=skip is not None,
            BLOCK=triton.next_power_of_2(size),
        )
    return y


def compress(cache: Tensor, rows: Tensor, position_bias: Tensor, overlaps: bool) -> Tensor:
    """See `deepinfer_core.ops.specs.kv.compress`."""
    num_groups, num_rows = rows.shape
    width = position_bias.shape[1] // (2 if overlaps else 1)
    y = position_bias.new_empty(num_groups, width)
    if num_groups:
        programs.compress[_grid(num_groups)](
            cache,
            rows.contiguous(),
            position_bias.contiguous(),
            y,
            num_groups,
            width,
            cache.stride(0),
            cache.shape[1],
            NUM_ROWS=num_rows,
            NUM_PLACES=position_bias.shape[0],
            OVERLAPS=overlaps,
            BLOCK=min(MAX_POOLED, triton.next_power_of_2(width)),
        )
    return y


def _grid(num_rows: int) -> tuple[int]:
    return (min(num_rows, MAX_PROGRAMS),)
