"""Rows as records and back: rounding to small codes, bit by bit as the released code does it.

Every step is exact or rounds once, so a row's bytes depend on nothing but the row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.codes import e2m1_numbers

E4M3_MAX = 448.0
E2M1_MAX = 6.0
MIN_AMAX = 1e-4
"""Below this, eight-bit codes get no finer steps."""
MIN_E4M3_SCALE = 2.0**-9
MIN_UE8M0_SCALE = 2.0**-126
E2M1_STEPS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
              (5.0, False))  # fmt: skip
"""From which magnitude on a code of four bits is the next one, and whether that magnitude itself
is: halfway, the even code wins. The codes 0 to 7 stand for 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""


def encode(x: Tensor, record: Record) -> Tensor:
    """Rows [n, width] of any float dtype -> uint8 [n, num_bytes], see `RecordFormat`."""
    out = torch.zeros(len(x), record.num_bytes, dtype=torch.uint8, device=x.device)
    if not len(x):
        return out
    how, wide = record.format, x.float()
    if record.is_turned:
        wide = turn(wide)
    coded = _grouped(wide[:, : record.num_coded], record.group)
    amax = coded.abs().amax(dim=-1)
    if how.codes == "e4m3":
        scales, scale_bytes = _e4m3_scales(amax, how.scales)
        scaled = (coded / scales.unsqueeze(-1)).clamp_(-E4M3_MAX, E4M3_MAX)
        codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
    else:
        scales, scale_bytes = _e2m1_scales(amax, how.scales)
        nibbles = e2m1_codes(coded / scales.unsqueeze(-1)).flatten(1)
        nibbles = F.pad(nibbles, (0, nibbles.shape[1] % 2))
        codes = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    _put(out, 0, codes[:, : record.code_bytes])
    _put(out, record.scale_offset, scale_bytes)
    if record.tail:
        _put(out, record.tail_offset, wide[:, record.num_coded :].bfloat16().view(torch.uint8))
    return out


def decode(data: Tensor, record: Record) -> Tensor:
    """Records uint8 [n, num_bytes] -> rows [n, width] float32."""
    rows = torch.empty(len(data), record.width, device=data.device)
    if not len(data):
        return rows
    coded, tail = rows[:, : record.num_coded], rows[:, record.num_coded :]
    codes = data[:, : record.code_bytes]
    if record.format.codes == "e4m3":
        coded.copy_(codes.view(torch.float8_e4m3fn))
    else:
        pairs = _e2m1_pairs(data.device).index_select(0, codes.flatten().long())
        coded.copy_(pairs.view(len(data), 2 * record.code_bytes)[:, : record.num_coded])
    first = record.scale_offset
    scales = _read_scales(data[:, first : first + record.scale_bytes], record.format.scales)
    whole = record.num_coded // record.group  # in place: memory costs more than arithmetic
    grouped = coded[:, : whole * record.group].view(len(data), whole, record.group)
    grouped.mul_(scales[:, :whole].unsqueeze(-1))
    coded[:, whole * record.group :].mul_(scales[:, whole:])
    if record.tail:
        first = record.tail_offset
        tail.copy_(_typed(data[:, first : first + 2 * record.tail], torch.bfloat16))
    return rows


def turn(x: Tensor) -> Tensor:
    """Multiply rows [..., W] float32 by an orthogonal Hadamard matrix of Sylvester's form.

    Its size is the largest power of two that divides W, such as 128; each stretch of so many dims
    is turned by itself.
    """
    shape = x.shape
    size = shape[-1] & -shape[-1]
    step = 1
    while step < size:
        pairs = x.reshape(*shape[:-1], -1, 2, step)
        a, b = pairs.unbind(dim=-2)
        x = torch.stack((a + b, a - b), dim=-2)
        step *= 2
    return x.reshape(shape) * float(size**-0.5)


def pow2_ceil(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest powers of two that are no smaller, for x [...] float32 from 2^-126 on.

    Returns:
        The values, and their exponents plus 127, uint8: taken from the bits, since a logarithm
        rounds.
    """
    bits = x.view(torch.int32)
    exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return _powers(exponents), exponents.to(torch.uint8)


def e2m1_codes(x: Tensor) -> Tensor:
    """Round to the nearest code, see `E2M1_STEPS`: uint8, bit 3 the sign."""
    magnitude = x.abs()
    codes = torch.signbit(x).to(torch.uint8) << 3
    for step, is_inclusive in E2M1_STEPS:
        codes += magnitude >= step if is_inclusive else magnitude > step
    return codes


def _e4m3_scales(amax: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Scales [n, groups] float32, and their bytes."""
    scales = amax.clamp(min=MIN_AMAX) / E4M3_MAX
    return (scales, scales.view(torch.uint8)) if kind == "float32" else pow2_ceil(scales)


def _e2m1_scales(amax: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "ue8m0":
        return pow2_ceil(amax.clamp(min=E2M1_MAX * MIN_UE8M0_SCALE) / E2M1_MAX)
    scales = amax.clamp(min=E2M1_MAX * MIN_E4M3_SCALE) / E2M1_MAX
    small = scales.clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return small.float(), small.view(torch.uint8)


def _powers(exponents: Tensor) -> Tensor:
    """Exponents plus 127, int32 from 1 to 254 -> powers of two float32."""
    return (exponents << 23).view(torch.float32)


def _read_scales(data: Tensor, kind: str) -> Tensor:
    """Bytes [n, scale_bytes] -> [n, groups] float32."""
    if kind == "float32":
        return _typed(data, torch.float32)
    if kind == "e4m3":
        return data.view(torch.float8_e4m3fn).float()
    return _powers(data.int())


def _grouped(x: Tensor, group: int) -> Tensor:
    """[n, W] -> [n, groups, group], zeros where the last group lacks dims."""
    filled = F.pad(x, (0, -x.shape[1] % group))
    return filled.reshape(len(x), filled.shape[1] // group, group)


def _typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes of a larger dtype; a copy, since in a record they lie at any address."""
    return data.clone(memory_format=torch.contiguous_format).view(dtype)


def _put(out: Tensor, first: int, data: Tensor) -> None:
    out[:, first : first + data.shape[1]] = data


def _e2m1_pairs(device: torch.device) -> Tensor:
    """[256, 2] float32: the two values of each byte, that of the low half first."""
    byte = torch.arange(256, device=device)
    return e2m1_numbers(device)[torch.stack((byte & 15, byte >> 4), dim=1)]
