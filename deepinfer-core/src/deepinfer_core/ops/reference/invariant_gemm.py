"""Matrix products in row tiles of one shape, so that a row's bits do not depend on its batch."""

from __future__ import annotations

import torch
from torch import Tensor, dtype

from deepinfer_core.ops.reference.codes import decode_weight
from deepinfer_core.ops.reference.gemm import has_native_float16, linear, multiply_scaled
from deepinfer_core.ops.reference.invariant_act import silu_mul

TILE = 16
"""Rows of a product. A row costs least with many, a lone row with few; 16 is near both."""


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    num_rows, width = x.shape
    tile = _tile_rows(x)
    # Its own memory, because a product may also depend on how its rows are aligned.
    padded = x.new_zeros(-(-num_rows // tile) * tile, width)
    padded[:num_rows] = x
    tiles = [linear(rows, weight, bias) for rows in torch.split(padded, tile)]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:num_rows]


def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.gated`."""
    return silu_mul(dense(x, weight, bias), limit)


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`."""
    return dense(x, decode_weight(codes, scales, scheme, x.dtype), bias)


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.batched`."""
    num_rows, num_groups, width = x.shape
    padded = x.new_zeros(num_groups, -(-num_rows // TILE) * TILE, width)
    padded[:, :num_rows] = x.transpose(0, 1)
    out = x.new_empty(padded.shape[1], num_groups, weight.shape[1])
    matrices = weight.transpose(1, 2)
    for first in range(0, num_rows, TILE):
        rows = padded[:, first : first + TILE].contiguous()
        out[first : first + TILE] = torch.bmm(rows, matrices).transpose(0, 1)
    return out[:num_rows]


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`."""
    return multiply_scaled(dense, q, scales, weight, weight_scales, scheme).to(out_dtype)


def _tile_rows(x: Tensor) -> int:
    # Without hardware for float16 a product costs the same per row, so padding would buy nothing.
    is_slow = x.device.type == "cpu" and x.dtype == torch.float16 and not has_native_float16()
    return 1 if is_slow else TILE
