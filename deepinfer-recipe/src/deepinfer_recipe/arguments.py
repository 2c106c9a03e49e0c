"""Checks of constructor arguments, with the wording that callers of the API already know.

Knows nothing of messages or requests. Every string that enters the package is valid Unicode
afterwards: a lone surrogate raises here and never reaches a prompt or an encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def check_str(name: str, value: object) -> str:
    """Return `value` if it is a string without lone surrogates.

    Raises:
        TypeError: not a string (names the argument and the type).
        UnicodeEncodeError: the string holds a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"argument '{name}': {cannot_cast(value, 'str')}")
    if not value.isascii():
        value.encode()
    return value


def check_optional_str(name: str, value: object) -> str | None:
    """As `check_str`, with None allowed."""
    return None if value is None else check_str(name, value)


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is exactly a bool.

    Raises:
        TypeError: anything else, also an int.
    """
    if not isinstance(value, bool):
        raise TypeError(f"argument '{name}': {cannot_cast(value, 'bool')}")
    return value


def check_uint(name: str, value: object, bits: int = 32) -> int:
    """Return `value` if it is an integer that `bits` unsigned bits hold.

    Raises:
        TypeError: not an integer.
        OverflowError: negative or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"argument '{name}': {cannot_cast(value, 'int')}")
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"argument '{name}': {value} is outside [0, 2^{bits})")
    return value


def check_instance(name: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is a `kind`.

    Raises:
        TypeError: it is not (names the argument and both types).
    """
    if not isinstance(value, kind):
        raise TypeError(f"argument '{name}': {cannot_cast(value, kind.__name__)}")
    return value


def check_list(name: str, value: object, kind: type[T]) -> list[T]:
    """Return a new list of the items of a sequence, each checked to be a `kind`.

    Raises:
        TypeError: a str, no sequence, or an item of another type.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"argument '{name}': {cannot_cast(value, 'Sequence')}")
    return [check_instance(name, item, kind) for item in value]


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of the `allowed` strings.

    Raises:
        TypeError: not a string.
        ValueError: another string (lists the allowed ones).
    """
    text = check_str(name, value)
    names = [f'"{item}"' for item in allowed]
    if f'"{text}"' in names:
        return text
    listed = " or ".join(names) if len(names) == 2 else ", ".join(names[:-1]) + ", or " + names[-1]
    raise ValueError(f'invalid {name} "{text}"; expected {listed}')


def cannot_cast(value: Any, kind: str) -> str:
    """Say that `value` is not a `kind`."""
    return f"'{type(value).__name__}' object cannot be cast as '{kind}'"
