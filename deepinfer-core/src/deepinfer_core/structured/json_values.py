"""JSON values as schemas see them: exact numbers, one text for each value, what fits a shape."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.formats import FORMATS
from deepinfer_core.structured.regex import parse_regex, python_pattern

if TYPE_CHECKING:
    from deepinfer_core.structured.schema_keywords import Shape

FIELD = "structured.json_schema"


def refuse(path: str, what: str) -> NoReturn:
    """Refuse a schema.

    Args:
        path: a JSON pointer with `#` in front.
    """
    raise GrammarError(f"{FIELD}: {path}: {what}", field=FIELD)


def parse(text: str) -> Any:
    """A JSON text; numbers with a point or an exponent are decimals."""
    return json.loads(text, parse_float=Decimal)


def canonical(value: Any) -> str:
    """One text for equal values: order of keys kept, numbers as short as they can be."""
    match value:
        case Decimal():
            return _number(value)
        case dict():
            pairs = (f"{canonical(key)}: {canonical(part)}" for key, part in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(canonical, value))}]"
    return json.dumps(value, ensure_ascii=False)


def kind_of(value: object) -> str:
    """The JSON type of a value."""
    if isinstance(value, bool):
        return "boolean"
    names = {type(None): "null", dict: "object", list: "array", str: "string"}
    return names.get(type(value), "number")


def fits(value: Any, shape: Shape, path: str) -> bool:
    """Whether a listed value is within the other limits of a shape.

    Raises:
        GrammarError: that would take a look inside it.
    """
    kind = kind_of(value)
    if kind not in shape.types:
        return False
    match kind:
        case "number":
            is_whole = value == int(value)
            return value in shape.interval and (is_whole or not shape.is_whole)
        case "string":
            most = len(value) if shape.max_length is None else shape.max_length
            expressions = [*shape.patterns, *(FORMATS[name] for name in shape.formats)]
            return shape.min_length <= len(value) <= most and all(
                matches(expression, value, path) for expression in expressions
            )
        case "array" if (shape.prefix, shape.items) != ((), True):
            refuse(path, "lists arrays and says what their items are; leave out one of the two")
        case "array":
            most = len(value) if shape.max_items is None else shape.max_items
            return shape.min_items <= len(value) <= most
        case "object" if (shape.properties, shape.additional) != ((), True):
            refuse(path, "lists objects and says what is in them; leave out one of the two")
        case "object":
            most = len(value) if shape.max_properties is None else shape.max_properties
            has_all = value.keys() >= set(shape.required)
            return has_all and shape.min_properties <= len(value) <= most
    return True


def matches(expression: str, text: str, path: str) -> bool:
    """Whether an expression matches somewhere in a text."""
    node = parse_regex(expression, field=f"{FIELD}: {path}/pattern")
    return re.search(python_pattern(node), text) is not None


def _number(value: Decimal) -> str:
    if value == value.to_integral_value():
        return str(int(value)) if abs(value) < Decimal(10) ** 25 else str(value)
    return format(value.normalize(), "f")
