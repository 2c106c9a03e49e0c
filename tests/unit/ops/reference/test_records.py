"""Records byte by byte, and the rounding of the released code, derived once more here."""

from __future__ import annotations

import struct

import pytest
import torch
from deepinfer_core.ops.records import RECORD_FORMATS, Record, make_record
from deepinfer_core.ops.reference.records import decode, e2m1_codes, encode, pow2_ceil, turn
from torch import Tensor

# The values of the specification, twice: 32 dims.
SAMPLE = [.1, -.25, .3, .7, -1.3, 2.2, .05, -.9,
          1.1, 0, -.02, .6, -.45, .15, .33, -2] * 2  # fmt: skip
TINY_SCALE = struct.pack("<f", float(torch.tensor(1e-4) / 448))
"""Of a group of zeros."""
RELEASED = {
    "656": make_record("656", 576, 64),
    "584": make_record("584", 512, 64),
    "528": make_record("528", 512, 64),
    "288": make_record("288", 512, 64),
    "132": make_record("132", 128),
    "68": make_record("68", 128),
}


def row_of(width: int, **values: float) -> Tensor:
    """Zeros but for some dims: `d3=1.0` is dim 3."""
    row = torch.zeros(1, width)
    for name, value in values.items():
        row[0, int(name[1:])] = value
    return row


def assert_bytes(row: Tensor, record: Record, expected: dict[int, bytes]) -> None:
    """Stretches of bytes by their places; all other bytes are 0."""
    wanted = bytearray(record.num_bytes)
    for place, stretch in expected.items():
        wanted[place : place + len(stretch)] = stretch
    assert bytes(encode(row, record)[0].tolist()) == bytes(wanted)


def test_names_are_bytes_at_the_released_widths() -> None:
    assert {name: str(record.num_bytes) for name, record in RELEASED.items()} == {
        name: name for name in RECORD_FORMATS
    }


def test_record_of_v32() -> None:
    # 448 / 1 and -1 / 1 in the first group; 1 is 7 + 0 exponent bits; 3 * 2^-9 scales to 448.
    row = row_of(576, d0=448.0, d1=-1.0, d128=0.875, d511=2.0, d512=1.0, d575=-0.15625)
    expected = {
        0: b"\x7e\xb8",
        128: b"\x7e",
        511: b"\x7e",
        512: struct.pack("<f", 1.0),
        516: struct.pack("<f", 0.875 / 448),
        520: TINY_SCALE,
        524: struct.pack("<f", float(torch.tensor(2.0) / 448)),
        528: b"\x80\x3f",  # bfloat16 of 1
        654: b"\x20\xbe",
    }
    assert_bytes(row, RELEASED["656"], expected)


def test_record_of_v4() -> None:
    row = row_of(512, d0=448.0, d1=449.0, d63=-3.0, d447=0.001, d448=1.0, d511=-2.0)
    expected = {
        # 449 asks for a scale of 2, by which 448 becomes 224.
        0: b"\x76\x76",
        63: b"\xbc",  # -1.5
        447: b"\x78",  # 0.001 * 2^18 = 262.144, which lies nearest to 256
        448: b"\x80\x3f",
        574: b"\x00\xc0",
        576: bytes([128, *[105] * 5, 109, 0]),  # 2^1, 2^-22 of zeros, 2^-18, nothing
    }
    assert_bytes(row, RELEASED["584"], expected)


def test_record_of_v41_windows() -> None:
    row = row_of(512, d0=1.0, d31=-0.5, d511=7.0)
    expected = {
        0: b"\x78",  # 1 * 2^8
        31: b"\xf0",
        511: b"\x7e",  # 7 * 2^6 = 448
        512: bytes([119, *[105] * 14, 121]),
    }
    assert_bytes(row, RELEASED["528"], expected)


def test_record_of_v41_rows() -> None:
    # Scales 1, the smallest one for zeros, and the largest one, beyond which values are cut off.
    row = row_of(512, d0=6.0, d1=-0.5, d15=0.25, d16=0.75, d511=5000.0)
    expected = {
        0: b"\x97",
        7: b"\x00",
        8: b"\x07",
        255: b"\x70",
        256: bytes([0x38, 0x20, *[1] * 29, 0x7E]),  # 1, 0.125, 2^-9, 448
    }
    assert_bytes(row, RELEASED["288"], expected)


def test_record_of_eight_bit_keys() -> None:
    row = row_of(128, d0=-448.0, d127=0.0078125)
    assert_bytes(row, RELEASED["132"], {0: b"\xfe", 127: b"\x04", 128: struct.pack("<f", 1.0)})


def test_record_of_four_bit_keys() -> None:
    row = row_of(128, d0=3.0, d1=6.0, d2=-1.25, d32=0.1, d127=-6.1)
    expected = {
        0: b"\x75\x0a",  # -1.25 lies halfway between 1 and 1.5: the even code
        16: b"\x05",  # 0.1 * 2^5 = 3.2, nearest to 3
        63: b"\xd0",  # -6.1 / 2
        64: bytes([127, 122, 1, 128]),
    }
    assert_bytes(row, RELEASED["68"], expected)


def test_values_of_the_specification() -> None:
    row = torch.tensor([SAMPLE])
    expected = {
        "288": [.1875, -.1875, .375, .75, -1.125, 2.25, 0, -.75, 1.125, 0, -0., .5625, -.375,
                .1875, .375, -2.25],
        "68": [0, -.25, .25, .75, -1.5, 2, 0, -1, 1, 0, -0., .5, -.5, .25, .25, -2],
        "528": [.1015625, -.25, .3125, .6875, -1.25, 2.25, .05078125, -.875],
    }  # fmt: skip
    for name, values in expected.items():
        record = make_record(name, 32)
        found = decode(encode(row, record), record)[0]
        assert found[: len(values)].tolist() == values
        assert torch.equal(found[:16], found[16:])
    assert encode(row, make_record("288", 32))[0, 16:].tolist() == [0x2C, 0x2C]  # .375
    assert encode(row, make_record("68", 32))[0, 16:].tolist() == [126]  # .5


def test_halves_go_to_the_even_code() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1_codes(middles).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1_codes(-middles).tolist() == [8, 10, 10, 12, 12, 14, 14]
    assert e2m1_codes(torch.tensor([0.0, -0.0, 99.0, -99.0])).tolist() == [0, 8, 7, 15]


def test_powers_of_two_are_exact_where_logarithms_are_not() -> None:
    powers = 2.0 ** torch.arange(-126, 127, dtype=torch.float32)
    values, exponents = pow2_ceil(powers)
    assert torch.equal(values, powers)
    assert exponents.tolist() == list(range(1, 254))
    just_above = torch.nextafter(powers[:-1], torch.tensor(torch.inf))
    assert torch.equal(pow2_ceil(just_above)[0], powers[1:])


def round_fp8(x: Tensor, group: int) -> Tensor:
    """Eight bits with powers of two as scales, after the formulas of the specification."""
    grouped = x.unflatten(-1, (-1, group))
    wanted = grouped.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448
    scale = torch.exp2(torch.ceil(torch.log2(wanted.double()))).float()
    return ((grouped / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def round_fp4(x: Tensor, group: int) -> Tensor:
    """Four bits, by looking for the nearest value; 16 to an e4m3 scale, 32 to a power of two."""
    grouped = x.unflatten(-1, (-1, group))
    amax = grouped.abs().amax(-1, keepdim=True)
    if group == 16:
        scale = (amax.clamp_min(6 * 2**-9) / 6).to(torch.float8_e4m3fn).float()
    else:
        wanted = amax.clamp_min(6 * 2**-126) / 6
        scale = torch.exp2(torch.ceil(torch.log2(wanted.double()))).float()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    distance = ((grouped / scale).clamp(-6, 6).abs().unsqueeze(-1) - values).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    # Of two that are as near, the even one.
    code = (nearest * torch.tensor([2, 1] * 4)).argmax(-1)
    return (torch.copysign(values[code], grouped) * scale).flatten(-2)


@pytest.mark.parametrize("magnitude", [1e-5, 0.3, 1.0, 40.0])
def test_rounding_is_that_of_the_released_code(magnitude: float) -> None:
    rows = torch.randn(200, 512, generator=torch.Generator().manual_seed(1)) * magnitude
    rows[:, ::7] = (rows[:, ::7] / magnitude * 4).round() / 4 * magnitude  # with many ties
    rows[3, 64:128] = 0
    for name, expected in {
        "584": torch.cat((round_fp8(rows[:, :448], 64), rows[:, 448:].bfloat16().float()), 1),
        "528": round_fp8(rows, 32),
        "288": round_fp4(rows, 16),
    }.items():
        record = RELEASED[name]
        assert torch.equal(decode(encode(rows, record), record), expected), name
    keys = rows[:, :128]
    assert torch.equal(decode(encode(keys, RELEASED["68"]), RELEASED["68"]), round_fp4(keys, 32))


@pytest.mark.parametrize("name", ["656", "132"])
def test_exact_scales_use_the_whole_range(name: str) -> None:
    record = RELEASED[name]
    rows = torch.randn(50, record.width, generator=torch.Generator().manual_seed(2))
    found = decode(encode(rows, record), record)
    coded, groups = found[:, : record.num_coded], rows[:, : record.num_coded]
    amax = groups.unflatten(1, (-1, 128)).abs().amax(-1)
    torch.testing.assert_close(coded.unflatten(1, (-1, 128)).abs().amax(-1), amax)
    assert ((coded - groups).abs() <= groups.abs() / 16 + 1e-4).all()
    assert torch.equal(found[:, record.num_coded :], rows[:, record.num_coded :].bfloat16().float())


@pytest.mark.parametrize("name", RECORD_FORMATS)
@pytest.mark.parametrize(("width", "rope_dim"), [(32, 16), (20, 8), (27, 4), (7, 2)])
def test_narrow_rows_have_fewer_and_smaller_groups(name: str, width: int, rope_dim: int) -> None:
    record = make_record(name, width, rope_dim)
    rows = torch.randn(9, width, generator=torch.Generator().manual_seed(3))
    data = encode(rows, record)
    assert data.shape == (9, record.num_bytes)
    found = decode(data, record)
    assert ((found - rows).abs() <= rows.abs() / 3 + 0.3).all()
    # Rounded rows are what they are.
    if record.format.scales == "ue8m0":
        assert torch.equal(decode(encode(found, record), record), found)
    for row in range(9):  # a row's bytes do not depend on the others
        assert torch.equal(encode(rows[row : row + 1], record)[0], data[row])
        assert torch.equal(decode(data[row : row + 1], record)[0], found[row])
    assert decode(encode(rows[:0], record), record).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_any_dtype(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 512, generator=torch.Generator().manual_seed(4)).to(dtype)
    for record in (RELEASED["584"], RELEASED["288"]):
        assert torch.equal(encode(rows, record), encode(rows.float(), record))


def test_turning_is_orthogonal_and_keeps_scores() -> None:
    matrix = turn(torch.eye(128))
    assert torch.equal(matrix, matrix.T)
    assert matrix.abs().unique().tolist() == [pytest.approx(128**-0.5)]
    # Sylvester's form: the sign counts the bits that row and column share.
    signs = [[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)]
    assert torch.equal(matrix.sign(), torch.tensor(signs, dtype=torch.float32))
    q, k = torch.randn(2, 50, 128, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close((turn(q) * turn(k)).sum(1), (q * k).sum(1), atol=1e-4, rtol=0)
    # Stretches of eight, where 24 is no power of two.
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(6))
    assert torch.equal(turn(x)[:, 8:16], turn(x[:, 8:16]))


def test_turned_records_hold_turned_rows() -> None:
    rows = torch.randn(5, 128, generator=torch.Generator().manual_seed(7))
    plain = make_record("68", 128)
    turned = make_record("68", 128, is_turned=True)
    assert torch.equal(encode(rows, turned), encode(turn(rows), plain))
