"""Rows as small numbers with scales, a piece of a row or a whole row per program."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

BLOCK = 2048
"""Numbers that a program rounds at a time."""
MANY_ROWS, MIN_MANY = 8, 1024
"""Rows that a program rounds where there are as many as that at least."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What `quant.act` does under one name."""

    dtype: torch.dtype
    qmax: float
    group: int | None
    """Numbers that share a scale; None: the row."""
    is_power: bool = False


SCHEMES = {
    "int8_token": Scheme(torch.int8, 127.0, None),
    "fp8_token": Scheme(torch.float8_e4m3fn, 448.0, None),
    "fp8_block128": Scheme(torch.float8_e4m3fn, 448.0, 128),
    "fp8_block128_ue8m0": Scheme(torch.float8_e4m3fn, 448.0, 128, is_power=True),
    "fp8_block32_ue8m0": Scheme(torch.float8_e4m3fn, 448.0, 32, is_power=True),
}


@triton.jit
def _scale_of(amax, QMAX: tl.constexpr, IS_POWER: tl.constexpr):
    if IS_POWER:
        # The next power of two: a mantissa carries into the exponent.
        scale = tl.div_rn(tl.maximum(amax, 1e-4), QMAX)
        bits = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        return bits.to(tl.float32, bitcast=True)
    else:
        return tl.where(amax > 0.0, tl.div_rn(amax, QMAX), 1.0)


@triton.jit
def _codes(numbers, scale, QMAX: tl.constexpr, IS_INTEGER: tl.constexpr, TYPE: tl.constexpr):
    scaled = tl.minimum(tl.maximum(tl.div_rn(numbers, scale), -QMAX), QMAX)
    if IS_INTEGER:
        # Adding 1.5 * 2^23 leaves no bits for fractions, and rounds half to even.
        scaled = (scaled + 12582912.0) - 12582912.0
    return scaled.to(TYPE)


@triton.jit(do_not_specialize=["num_rows"])
def groups_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    num_rows,
    size,
    x_stride,
    scales_stride,
    scales_group_stride,
    QMAX: tl.constexpr,
    IS_POWER: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = (rows < num_rows)[:, None, None] & (columns < size)[None, :, :]
    x_place = x_ptr + rows[:, None, None] * x_stride + columns[None, :, :]
    x = tl.load(x_place, mask=mask, other=0.0).to(tl.float32)
    scale = _scale_of(tl.max(tl.abs(x), axis=2), QMAX, IS_POWER)
    place = rows[:, None] * scales_stride + groups[None, :] * scales_group_stride
    is_group = (rows < num_rows)[:, None] & (groups * GROUP < size)[None, :]
    tl.store(scales_ptr + place, scale, mask=is_group)
    full = tl.zeros_like(x) + scale[:, :, None]
    q = _codes(x, full, QMAX, False, q_ptr.dtype.element_ty)
    tl.store(q_ptr + rows[:, None, None] * size + columns[None, :, :], q, mask=mask)


@triton.jit
def rows_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    size,
    x_stride,
    QMAX: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        mask = first + block < size
        x = tl.load(x_ptr + row * x_stride + first + block, mask=mask, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = _scale_of(tl.max(largest, axis=0), QMAX, False)
    tl.store(scales_ptr + row, scale)
    full = tl.zeros([BLOCK], tl.float32) + scale
    for first in range(0, size, BLOCK):
        mask = first + block < size
        x = tl.load(x_ptr + row * x_stride + first + block, mask=mask, other=0.0)
        q = _codes(x.to(tl.float32), full, QMAX, IS_INTEGER, q_ptr.dtype.element_ty)
        tl.store(q_ptr + row * size + first + block, q, mask=mask)


def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """See `deepinfer_core.ops.specs.quant.act`."""
    if scheme not in SCHEMES:
        raise ValueError(f"no quantisation scheme {scheme!r}; known: {', '.join(SCHEMES)}")
    how = SCHEMES[scheme]
    num_rows, size = x.shape
    if how.group is not None:
        scales = torch.empty(
            (num_rows, triton.cdiv(size, how.group)), dtype=torch.float32, device=x.device
        )
        return round_groups(x, how, scales), scales
    x = x if x.stride(1) == 1 else x.contiguous()
    q = torch.empty((num_rows, size), dtype=how.dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        rows_kernel[(num_rows,)](
            x,
            q,
            scales,
            size,
            x.stride(0),
            QMAX=how.qmax,
            IS_INTEGER=how.dtype == torch.int8,
            BLOCK=min(BLOCK, triton.next_power_of_2(size)),
            **overlap(x.device),
        )
    return q, scales


def round_groups(x: Tensor, how: Scheme, scales: Tensor, q: Tensor | None = None) -> Tensor:
    """Codes [T, C] of rows [T, C], in q if given; fills scales [T, ceil(C / group)].

    Args:
        scales: of any strides.
        q: contiguous.
    """
    group = how.group
    assert group is not None
    x = x if x.stride(1) == 1 else x.contiguous()
    num_rows, size = x.shape
    if q is None:
        q = torch.empty((num_rows, size), dtype=how.dtype, device=x.device)
    if q.numel():
        # Scales of neighbouring rows lie side by side where products read them.
        rows = MANY_ROWS if num_rows >= MIN_MANY else 1
        num_groups = min(BLOCK // group, triton.next_power_of_2(scales.shape[1]))
        if rows > 1:
            num_groups = max(1, 2 * num_groups // rows)
        groups_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(scales.shape[1], num_groups))](
            *(x, q, scales, num_rows, size, x.stride(0), *scales.stride()),
            QMAX=how.qmax,
            IS_POWER=how.is_power,
            ROWS=rows,
            GROUP=group,
            GROUPS=num_groups,
            **overlap(x.device),
        )
    return q
