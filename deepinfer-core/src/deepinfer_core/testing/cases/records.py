"""Cases of records, and records for the cases of what reads them.

Codes, scales and bytes follow here from what the formats say, not from the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.ops.records import RECORD_FORMATS, Record, make_record
from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.compare import assert_same_bits

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
"""Magnitudes by code."""
NAN_BYTE = 0xFF
GARBAGE_BYTE = 0x55
"""Finite as any part of a record."""


def encode_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for name in RECORD_FORMATS:
        for width in sizes.several("width", 144, 37):
            shape = {"width": width}
            for is_turned in (False, True):
                record = make_record(name, width, width // 9 * 2, is_turned=is_turned)
                suffix = "-turned" if is_turned else ""
                build = partial(_encode, record)
                cases.append(Case(f"{name}-{width}{suffix}", build, scheme=name, sizes=shape))
    return cases


def decode_cases(sizes: Sizes) -> Sequence[Case]:
    return [
        Case(
            f"{name}-{width}",
            partial(_decode, make_record(name, width, width // 9 * 2)),
            scheme=name,
            sizes={"width": width},
        )
        for name in RECORD_FORMATS
        for width in sizes.several("width", 144, 37)
    ]


def draw(make: Maker, count: int, record: Record) -> tuple[Tensor, Tensor]:
    """Any records: bytes [count, num_bytes], and the rows [count, W] float64 they stand for."""
    shape = (count, record.num_coded)
    if record.format.codes == "e4m3":
        values = make.normal(*shape, scale=30.0, dtype=torch.float32).cpu()
        values = values.to(torch.float8_e4m3fn).double()
    else:
        signs = make.integers(0, 2, *shape, dtype=torch.int64).cpu() * 2 - 1
        values = E2M1[make.integers(0, 8, *shape, dtype=torch.int64).cpu()] * signs
    powers = 2.0 ** make.integers(-6, -3, count, record.num_scales, dtype=torch.int64).cpu()
    scales = powers.float()
    if record.format.scales != "ue8m0":
        scales *= 1.25
    tail = wide(make.normal(count, record.tail, dtype=torch.bfloat16))
    data = pack(values, scales, tail, record).to(make.device)
    return data, torch.cat((values * _spread(wide(scales), record), tail), dim=1)


def pack_exactly(rows: Tensor, record: Record) -> Tensor:
    """Rows [n, W] of small integers, as records of unit scales without a tail: [n, num_bytes].

    Rows of garbage (100 and more) and of nan become such bytes.
    """
    values = wide(rows).nan_to_num(0.0).clamp(-6, 6)
    ones = torch.ones(len(rows), record.num_scales)
    data = pack(values, ones, values[:, :0], record)
    held = wide(rows)
    data[(held.abs() >= 100).any(dim=1)] = GARBAGE_BYTE
    data[held.isnan().any(dim=1)] = NAN_BYTE
    return data.to(rows.device)


def in_pages(data: Tensor, block_size: int) -> Tensor:
    """Records [P * s, num_bytes] as a cache [P, s, num_bytes] in pages of an odd size."""
    blocks = data.view(-1, block_size * data.shape[1])
    pool = data.new_full((len(blocks), blocks.shape[1] + 7), NAN_BYTE)
    pool[:, : blocks.shape[1]] = blocks
    return pool[:, : blocks.shape[1]].view(-1, block_size, data.shape[1])


def pack(values: Tensor, scales: Tensor, tail: Tensor, record: Record) -> Tensor:
    """Bytes of values that codes stand for, of scales [n, groups] float32 and of a tail."""
    if record.format.codes == "e4m3":
        codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        nibbles = (values.abs().unsqueeze(-1) == E2M1).int().argmax(-1) + 8 * values.signbit()
        nibbles = torch.nn.functional.pad(nibbles, (0, nibbles.shape[1] % 2))
        codes = (nibbles[:, ::2] + 16 * nibbles[:, 1::2]).to(torch.uint8)
    kinds = {
        "float32": lambda: scales.contiguous().view(torch.uint8),
        "e4m3": lambda: scales.to(torch.float8_e4m3fn).view(torch.uint8),
        "ue8m0": lambda: (scales.log2() + 127).to(torch.uint8),
    }
    scale_bytes = kinds[record.format.scales]() if len(scales) else codes[:, :0]
    alignment = record.format.scale_alignment
    room = torch.nn.functional.pad(scale_bytes, (0, -scale_bytes.shape[1] % alignment))
    parts = [room, tail.bfloat16().view(torch.uint8) if tail.numel() else codes[:, :0]]
    if record.format.tail_first:
        parts.reverse()
    return torch.cat((codes, *parts), dim=1)


def _encode(record: Record, make: Maker, num_tokens: int) -> Call:
    x = make.rows(num_tokens, record.width, scale=3.0)
    if record.is_turned:
        x.round_().add_(0.0)  # sums of integers are exact in any order, without negative zeros
    if num_tokens > 1:
        x[1] = 0
    rows = _turn(x.float().cpu()) if record.is_turned else x.float().cpu()

    def check(outputs: Sequence[Tensor]) -> None:
        assert_same_bits(outputs[0].cpu(), _round(rows, record), "records")

    return Call({"x": x, "record": record}, [], check=check)


def _decode(record: Record, make: Maker, num_tokens: int) -> Call:
    data, rows = draw(make, num_tokens, record)

    def check(outputs: Sequence[Tensor]) -> None:
        assert_same_bits(outputs[0].cpu(), rows.float(), "rows")

    return Call({"data": data, "record": record}, [], check=check)


def _turn(rows: Tensor) -> Tensor:
    """By the matrix itself, written out."""
    size = rows.shape[1] & -rows.shape[1]
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    stretches = rows.view(len(rows), rows.shape[1] // size, size) @ torch.tensor(signs)
    return stretches.flatten(1) * float(size**-0.5)


def _round(rows: Tensor, record: Record) -> Tensor:
    """Look for the nearest code of each value."""
    if not len(rows):
        return torch.empty(0, record.num_bytes, dtype=torch.uint8)
    how, coded = record.format, rows[:, : record.num_coded]
    groups = [group.abs().amax(dim=1) for group in torch.split(coded, record.group, dim=1)]
    amax = torch.stack(groups, dim=1)
    top = 448.0 if how.codes == "e4m3" else 6.0
    least = {"e4m3": 2.0**-9, "ue8m0": 2.0**-126}
    scales = amax.clamp(min=1e-4 if how.codes == "e4m3" else top * least[how.scales]) / top
    if how.scales == "ue8m0":
        scales = torch.exp2(torch.ceil(torch.log2(scales.double()))).float()
    elif how.scales == "e4m3":
        scales = scales.clamp(max=448.0).to(torch.float8_e4m3fn).float()
    scaled = (coded / _spread(scales, record)).double()
    magnitudes = _e4m3_values() if how.codes == "e4m3" else E2M1
    distance = (scaled.abs().clamp(max=top).unsqueeze(-1) - magnitudes).abs()
    is_even = torch.arange(len(magnitudes)) % 2 == 0
    nearest = distance == distance.amin(dim=-1, keepdim=True)
    codes = (nearest * (1 + is_even.int())).argmax(dim=-1)  # of two as near, the even one
    values = torch.copysign(magnitudes[codes], scaled)
    return pack(values, scales, rows[:, record.num_coded :], record)


def _e4m3_values() -> Tensor:
    """Magnitudes of the finite codes, 0 to 448."""
    code = torch.arange(127, dtype=torch.float64)
    exponent, mantissa = (code / 8).floor(), code % 8
    normal = 2.0 ** (exponent - 7) * (1 + mantissa / 8)
    return torch.where(exponent > 0, normal, mantissa * 2.0**-9)


def _spread(scales: Tensor, record: Record) -> Tensor:
    return scales.repeat_interleave(record.group, dim=1)[:, : record.num_coded]


OPS = {
    "quant.encode": OpCases(encode_cases, rows=("x",)),
    "quant.decode": OpCases(decode_cases, rows=("data",)),
}
