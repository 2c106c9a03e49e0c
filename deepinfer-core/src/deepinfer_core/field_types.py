"""Types of user-facing fields: strict where a silly value would be bent into a legal one.

A bool is no number, "3" is no number, NaN is no setting. Numbers of other libraries are accepted.
Knows neither configuration nor sampling; both say with it what a field allows.
"""

from __future__ import annotations

import math
import operator
import os
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo

_MAX_REPR_CHARS = 200


def _whole(value: object) -> object:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ValueError(f"must be a whole number, not {type(value).__name__}")
    return operator.index(value)  # type: ignore[arg-type]  # asked for just above


def _real(value: object) -> object:
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise ValueError(f"must be a number, not {type(value).__name__}")
    number = float(value)  # type: ignore[arg-type]  # asked for just above
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number


def _path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, BeforeValidator(_real)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
PathText = Annotated[str, Field(strict=True, min_length=1), BeforeValidator(_path)]
"""A path, or the name of something on a hub."""


def describe_allowed(field: FieldInfo) -> str:
    """Say in words what a field accepts, such as `a whole number >= 1, or null`."""
    optional, annotation = _split_optional(field.annotation)
    limits = " and ".join(_limits(field.metadata))
    words = " ".join(part for part in (_describe(annotation), limits) if part)
    return f"{words}, or null" if optional else words


def short_repr(value: object) -> str:
    """`repr`, cut to a length that fits a message."""
    text = repr(value)
    return text if len(text) <= _MAX_REPR_CHARS else f"{text[:_MAX_REPR_CHARS]}..."


def _split_optional(annotation: Any) -> tuple[bool, Any]:
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType) and type(None) in arguments:
        rest = [argument for argument in arguments if argument is not type(None)]
        return True, rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007  built at run time
    return False, annotation


def _describe(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        limits = " and ".join(_limits(metadata))
        return f"{_describe(base)} {limits}".rstrip()
    if origin is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if origin is tuple:
        return f"a list, each {_describe(get_args(annotation)[0])}"
    if origin is dict:
        key, value = get_args(annotation)
        return f"a mapping from {_describe(key)} to {_describe(value)}"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"an object with fields {', '.join(annotation.model_fields)}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(annotation, str(annotation))


def _limits(metadata: list[Any]) -> list[str]:
    words = []
    for item in metadata:
        if isinstance(item, FieldInfo):
            words += _limits(item.metadata)
        for kind, sign in (
            (annotated_types.Gt, ">"),
            (annotated_types.Ge, ">="),
            (annotated_types.Lt, "<"),
            (annotated_types.Le, "<="),
        ):
            if isinstance(item, kind):
                words.append(f"{sign} {getattr(item, kind.__name__.lower())}")
    return words
