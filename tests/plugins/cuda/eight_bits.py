"""Lets Triton's interpreter round to eight-bit floats as devices do: ties to even, saturating.

By itself it rounds half away from zero, and a mantissa that overflows does not reach the exponent.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

EIGHT_BITS = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
WIDER = {tl.float32: torch.float32, tl.float16: torch.float16, tl.bfloat16: torch.bfloat16}
plain_convert = interpreter._convert_float


def convert(bits, source, target, rounding=None):
    if target not in EIGHT_BITS or source not in WIDER:
        return plain_convert(bits, source, target, rounding)
    dtype = EIGHT_BITS[target]
    numbers = torch.from_numpy(np.ascontiguousarray(bits)).view(WIDER[source]).float()
    largest = torch.finfo(dtype).max
    codes = numbers.clamp(-largest, largest).to(dtype).view(torch.uint8)
    return codes.numpy().reshape(bits.shape)


def round_as_devices_do():
    interpreter._convert_float = convert
