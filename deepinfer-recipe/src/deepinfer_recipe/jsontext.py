"""JSON as the prompt formats and the protocols read and write it.

One loader and its writers (spaced for prompts, compact for constraints and arguments). Knows
nothing of requests. A JSON value here is None, bool, int in [-2^63, 2^64), finite float, str
without lone surrogates, list, or dict with str keys, nested at most `MAX_DEPTH` deep;
everything that enters the package passes `loads` or `from_python`, so the writers don't check.
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Decimal
from json.encoder import encode_basestring as _quote
from typing import Any

MAX_DEPTH = 128
_MAX_TEXT_DEPTH = MAX_DEPTH - 1  # the reader of texts counts the level it would enter next
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


class JsonTextError(ValueError):
    """The text is not JSON within the limits; the message says why."""


def loads(text: str) -> Any:
    """Parse one JSON text; integers beyond 64 bits become floats, `-0` becomes `-0.0`.

    Raises:
        JsonTextError: no JSON, NaN or infinity, a number out of range, an escaped lone
            surrogate, or more than 127 levels of nesting.
    """
    if text.startswith("\ufeff"):
        raise JsonTextError("expected value at line 1 column 1")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise JsonTextError("recursion limit exceeded") from None
    if text.count("[") + text.count("{") > _MAX_TEXT_DEPTH and _deeper_than(value, _MAX_TEXT_DEPTH):
        raise JsonTextError("recursion limit exceeded")
    if ("\\ud" in text or "\\uD" in text) and _has_lone_surrogate(value):
        raise JsonTextError("lone leading surrogate in hex escape")
    return value


def from_python(value: Any) -> Any:
    """Return a JSON copy of a Python value; tuples become arrays.

    Raises:
        ValueError: NaN or infinity.
        OverflowError: an integer outside [-2^63, 2^64).
        TypeError: a key that is not a str, or a value without a JSON form.
        RecursionError: more than 128 levels of nesting.
        UnicodeEncodeError: a lone surrogate.
    """
    return _copy(value, MAX_DEPTH)


def dumps_spaced(value: Any) -> str:
    """Write `value` with ", " and ": " as prompts show it; non-ASCII text stays as it is."""
    return _dump(value, _PYTHON_ENCODER)


def dumps_python(value: Any) -> str:
    """Write `value` with spaces and with floats in Python's form (`1e-05` for 0.00001)."""
    return _PYTHON_ENCODER.encode(value)


def dumps_compact(value: Any) -> str:
    """Write `value` without any space; non-ASCII text stays as it is."""
    return _dump(value, _COMPACT_ENCODER)


def quote(text: str) -> str:
    """Write a string with its quotes and JSON escapes."""
    return _quote(text)


def format_float(value: float) -> str:
    """Write a finite float: shortest digits, positional for exponents from -5 to 15."""
    sign, digit_tuple, exponent = Decimal(repr(value)).as_tuple()
    digits = "".join(map(str, digit_tuple)).rstrip("0")
    prefix = "-" if sign else ""
    if not digits:
        return prefix + "0.0"
    point = len(digit_tuple) + int(exponent)
    if 0 < point <= 16:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        return f"{prefix}{whole}.{fraction or '0'}"
    if -5 < point <= 0:
        return f"{prefix}0.{'0' * -point}{digits}"
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{prefix}{mantissa}e{point - 1:+d}".replace("e+0", "e+").replace("e-0", "e-")


def shortest_f32(value: float) -> float:
    """Return the number of fewest digits that is the nearest 32-bit float to `value`."""
    packed = struct.pack("<f", value)
    narrowed: float = struct.unpack("<f", packed)[0]
    for digits in range(1, 9):
        candidate = float(f"{narrowed:.{digits}g}")
        if struct.pack("<f", candidate) == packed:
            return candidate
    return float(f"{narrowed:.9g}")


def _dump(value: Any, encoder: json.JSONEncoder) -> str:
    text = encoder.encode(value)
    # The two forms differ only where Python writes an exponent; text that looks so costs time only.
    if _EXPONENT.search(text) is None:
        return text
    return _write(value, encoder.item_separator, encoder.key_separator)


def _write(value: Any, comma: str, colon: str) -> str:
    kind = type(value)
    if kind is str:
        return _quote(value)
    if kind is dict:
        members = (_quote(key) + colon + _write(item, comma, colon) for key, item in value.items())
        return "{" + comma.join(members) + "}"
    if kind is list:
        return "[" + comma.join([_write(item, comma, colon) for item in value]) + "]"
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value) if kind is int else format_float(value)


def _copy(value: Any, levels: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
        return str(value)
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise OverflowError("integer is outside the JSON number range")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            name = "NaN" if math.isnan(value) else repr(float(value))
            raise ValueError(f"{name} is not a finite JSON number")
        return float(value)
    if not isinstance(value, (dict, list, tuple)):
        raise TypeError(f"{type(value).__name__} is not a JSON value")
    if levels == 0:
        raise RecursionError(f"JSON input exceeds the maximum nesting depth of {MAX_DEPTH}")
    if isinstance(value, dict):
        return {_copy_key(key): _copy(item, levels - 1) for key, item in value.items()}
    return [_copy(item, levels - 1) for item in value]


def _copy_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError("JSON object keys must be str")
    key.encode()
    return str(key)


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        parents = [item for item in layer if isinstance(item, (dict, list))]
        if not parents:
            return False
        layer = [child for parent in parents for child in _children(parent)]
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _parse_int(digits: str) -> int | float:
    if digits == "-0":
        return -0.0
    if len(digits) <= 20:  # no 64-bit integer is longer; int() refuses thousands of digits
        value = int(digits)
        if _INT_MIN <= value <= _INT_MAX:
            return value
    return _parse_float(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JsonTextError("number out of range")
    return value


def _refuse_constant(name: str) -> Any:
    raise JsonTextError(f"expected value, got {name}")


_PYTHON_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)
_COMPACT_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
_EXPONENT = re.compile(r"\de[-+]\d")
_DECODER = json.JSONDecoder(
    parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant
)
