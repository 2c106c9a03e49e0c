"""Groups of raw rows pooled into one row each, by a softmax per channel over the group."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.attend import LOG2_E

CHANNELS = 128
"""Of a program."""


@triton.jit
def _compress_kernel(
    cache_ptr,
    rows_ptr,
    bias_ptr,
    out_ptr,
    block_stride,
    block_size,
    rows_stride,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < OUT
    peak = tl.full([CHANNELS], float("-inf"), tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    pooled = tl.zeros([CHANNELS], tl.float32)
    for token in tl.static_range(TOKENS):
        slot = tl.load(rows_ptr + group * rows_stride + token).to(tl.int64)
        # With overlap the second halves of the channels are those of the group's own tokens.
        own = channels + (token // GROUP) * OUT
        mask = is_channel & (slot + tl.zeros_like(channels) >= 0)
        place = tl.maximum(slot, 0)
        row = cache_ptr + place // block_size * block_stride + place % block_size * (2 * WIDTH)
        value = tl.load(row + own, mask=mask, other=0.0)
        gate = tl.load(row + WIDTH + own, mask=mask, other=0.0)
        gate += tl.load(bias_ptr + token % GROUP * WIDTH + own, mask=mask, other=0.0)
        gate = tl.where(mask, gate * LOG2_E, float("-inf"))
        new_peak = tl.maximum(peak, gate)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        kept, weight = tl.exp2(peak - base), tl.exp2(gate - base)
        total = total * kept + weight
        pooled = pooled * kept + weight * value
        peak = new_peak
    out = pooled / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + group * OUT + channels, out, mask=is_channel)


def compress(cache: Tensor, rows: Tensor, position_bias: Tensor, overlaps: bool) -> Tensor:
    """See `deepinfer_core.ops.specs.kv.compress`."""
    group, width = position_bias.shape
    size = width // 2 if overlaps else width
    out = torch.empty((len(rows), size), dtype=torch.float32, device=cache.device)
    if len(rows):
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        _compress_kernel[(len(rows), triton.cdiv(size, CHANNELS))](
            cache,
            rows,
            position_bias.contiguous(),
            out,
            cache.stride(0),
            cache.shape[1],
            rows.stride(0),
            WIDTH=width,
            OUT=size,
            GROUP=group,
            TOKENS=rows.shape[1],
            CHANNELS=CHANNELS,
            num_warps=2,
        )
    return out
