"""Typed reading of a request body: JSON values to fields, or one clear error.

Knows no protocol. Unknown fields are ignored, null equals absent where a field is optional.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ..jsontext import JsonTextError, format_float, from_python, loads

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any], T]
RequestBody: TypeAlias = bytes | str | dict[str, Any]


class BodyError(ValueError):
    """A body that is no JSON, or no request of its protocol."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid request body: {reason}")


def parse_body(body: RequestBody) -> Any:
    """Return the JSON value of a body.

    Raises:
        ValueError: the text is no JSON.
        TypeError, OverflowError, RecursionError, UnicodeEncodeError: a Python value without a
            JSON form.
    """
    if isinstance(body, bytes):
        try:
            body = body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"invalid JSON request: invalid unicode: {error.reason}") from None
    if isinstance(body, str):
        body.encode()
        try:
            return loads(body)
        except JsonTextError as error:
            raise ValueError(f"invalid JSON request: {error}") from None
    return from_python(body)


def describe(value: Any) -> str:
    """Name the type of a JSON value for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{'true' if value else 'false'}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{format_float(value)}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "map" if isinstance(value, dict) else "sequence"


def read_str(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise _wrong_type(value, "a string")
    return value


def read_bool(value: Any) -> bool:
    """Read a boolean."""
    if not isinstance(value, bool):
        raise _wrong_type(value, "a boolean")
    return value


def read_any(value: Any) -> Any:
    """Read any JSON value."""
    return value


def read_f32(value: Any) -> float:
    """Read a number as a 32-bit float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(value, "f32")
    try:
        narrowed: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("-inf") if value < 0 else float("inf")
    return narrowed


def read_uint(bits: int) -> Reader[int]:
    """Return a reader of unsigned integers of so many bits."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(value, f"u{bits}")
        if not 0 <= value < 1 << bits:
            raise BodyError(f"invalid value: integer `{value}`, expected u{bits}")
        return value

    return read


def read_list(reader: Reader[T]) -> Reader[list[T]]:
    """Return a reader of lists."""

    def read(value: Any) -> list[T]:
        if not isinstance(value, list):
            raise _wrong_type(value, "a sequence")
        return [reader(item) for item in value]

    return read


def read_map(value: Any, expected: str) -> dict[str, Any]:
    """Read an object."""
    if not isinstance(value, dict):
        raise _wrong_type(value, expected)
    return value


def read_name(*names: str) -> Reader[str]:
    """Return a reader of one of some names."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(value, "a name")
        if value not in names:
            raise BodyError(_unknown(value, names))
        return value

    return read


def read_tag(value: Any, kind: str, names: Sequence[str], tag: str = "type") -> dict[str, Any]:
    """Read an object whose `tag` is one of `names`."""
    fields = read_map(value, f"internally tagged enum {kind}")
    if tag not in fields:
        raise BodyError(f"missing field `{tag}`")
    if not isinstance(fields[tag], str):
        raise _wrong_type(fields[tag], "variant identifier")
    if fields[tag] not in names:
        raise BodyError(_unknown(fields[tag], names))
    return fields


def required(fields: dict[str, Any], name: str, reader: Reader[T]) -> T:
    """Read a field that must be there."""
    if name not in fields:
        raise BodyError(f"missing field `{name}`")
    return reader(fields[name])


def optional(fields: dict[str, Any], name: str, reader: Reader[T]) -> T | None:
    """Read a field that may be missing or null."""
    value = fields.get(name)
    return None if value is None else reader(value)


def _wrong_type(value: Any, expected: str) -> BodyError:
    return BodyError(f"invalid type: {describe(value)}, expected {expected}")


def _unknown(value: str, names: Sequence[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    one_of = "one of " if len(names) > 2 else ""
    if len(names) == 2:
        listed = listed.replace(", ", " or ")
    return f"unknown variant `{value}`, expected {one_of}{listed}"
