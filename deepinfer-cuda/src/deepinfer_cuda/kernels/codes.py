"""What codes of weights mean, in registers (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def e8m0_numbers(codes):
    """uint8 b -> 2^(b - 127) float32, which is subnormal at b = 0."""
    bits = tl.where(codes == 0, 0x400000, codes.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def e2m1_numbers(codes):
    """The low four bits -> float32: as float16, whose exponent counts from 14 lower."""
    wide = codes.to(tl.int16)
    bits = ((wide & 7) << 9) | ((wide & 8) << 12)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def e2m1_pairs(codes):
    """uint8 [N, K / 2], the first number of each pair in the low bits -> float32 [N, K]."""
    pairs = tl.join(e2m1_numbers(codes), e2m1_numbers(codes >> 4))
    return tl.reshape(pairs, (codes.shape[0], 2 * codes.shape[1]))


@triton.jit
def scale_groups(numbers, scales, GROUP: tl.constexpr):
    """[N, K] times [N, K / GROUP], a scale for each group of a row."""
    rows: tl.constexpr = numbers.shape[0]
    columns: tl.constexpr = numbers.shape[1]
    grouped = tl.reshape(numbers, (rows, columns // GROUP, GROUP))
    return tl.reshape(grouped * scales[:, :, None], (rows, columns))


@triton.jit
def e4m3_numbers(codes, TYPE: tl.constexpr, IS_PACKED: tl.constexpr):
    """float8e4nv -> TYPE, exactly.

    IS_PACKED: to bfloat16 four at a time. A code is a bfloat16 whose exponent counts from 120
    lower, moved four bits; conversions go through more steps.
    """
    if IS_PACKED and tl.bfloat16 == TYPE:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high, part, power, zero;
            mov.b32 power, 0x7B807B80;
            mov.b32 zero, 0x80008000;
            prmt.b32 low, $2, 0, 0x1404;
            prmt.b32 high, $2, 0, 0x3424;
            shr.u32 part, low, 4;
            and.b32 part, part, 0x07F007F0;
            lop3.b32 low, low, 0x80008000, part, 0xEA;
            shr.u32 part, high, 4;
            and.b32 part, part, 0x07F007F0;
            lop3.b32 high, high, 0x80008000, part, 0xEA;
            fma.rn.bf16x2 $0, low, power, zero;
            fma.rn.bf16x2 $1, high, power, zero;
            }
            """,
            "=r,=r,r",
            [codes],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        return codes.to(tl.float32).to(TYPE)
