"""The keywords of JSON schemas: what each says of a value, and which have no grammar.

Knows one schema at a time; `shapes.py` puts schemas together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from deepinfer_core.structured.json_values import canonical, kind_of, refuse
from deepinfer_core.structured.numbers import Interval

Schema: TypeAlias = "bool | dict[str, Any]"

ANY_NUMBER = Interval()
TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})

ANNOTATIONS = frozenset(
    {"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
    | {"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"}
    | {"contentSchema", "discriminator"}
)
"""Say nothing about what is valid."""
APPLICATORS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "dependentRequired", "dependentSchemas"}
)
ASSERTIONS = frozenset(
    {"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minLength", "maxLength", "pattern", "format", "prefixItems", "items", "minItems"}
    | {"maxItems", "properties", "required", "additionalProperties", "minProperties"}
    | {"maxProperties"}
)
REFUSED = {
    "not": "say what is allowed instead",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "contains": "use items",
    "minContains": "use items",
    "maxContains": "use items",
    "uniqueItems": "leave it out and check the answer",
    "multipleOf": "leave it out and check the answer, or use a pattern or an enum",
    "patternProperties": "use properties or additionalProperties",
    "propertyNames": "use properties or additionalProperties",
    "dependencies": "use dependentRequired or dependentSchemas",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "additionalItems": "use prefixItems and items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "$id": "only the whole schema may have one",
    "id": "leave it out",
    "$anchor": "refer by #/$defs/...",
    "$dynamicAnchor": "refer by #/$defs/...",
    "$recursiveAnchor": "refer by #/$defs/...",
    "$vocabulary": "leave it out",
}
"""Keywords that no grammar of ours holds an answer to, and what helps."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One alternative: values of some types within some limits."""

    types: frozenset[str] = TYPES
    is_whole: bool = False
    """Of numbers: only whole ones."""
    values: tuple[str, ...] | None = None
    """JSON texts; None: not listed."""
    interval: Interval = ANY_NUMBER
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    prefix: tuple[Schema, ...] = ()
    items: Schema = True
    min_items: int = 0
    max_items: int | None = None
    properties: tuple[tuple[str, Schema], ...] = ()
    required: tuple[str, ...] = ()
    additional: Schema = True
    min_properties: int = 0
    max_properties: int | None = None


def read_assertions(schema: Mapping[str, Any], path: str) -> Shape:
    """What a schema itself says, its applicators left out.

    Raises:
        GrammarError: a keyword is malformed.
    """
    types, is_whole = _types(schema, path)
    values: tuple[str, ...] | None = None
    if "enum" in schema:
        if not isinstance(schema["enum"], list):
            refuse(f"{path}/enum", "needs a list of values")
        values = tuple(map(canonical, schema["enum"]))
    if "const" in schema:
        constant = canonical(schema["const"])
        values = (constant,) if values is None or constant in values else ()
    numbers = {name: _number(schema, name, path) for name in _BOUNDS}
    interval = Interval(numbers["minimum"], numbers["maximum"]).meet(
        Interval(numbers["exclusiveMinimum"], numbers["exclusiveMaximum"], True, True)
    )
    max_items = _count(schema, "maxItems", path)
    return Shape(
        types=types,
        is_whole=is_whole,
        values=values,
        interval=interval,
        min_length=_count(schema, "minLength", path) or 0,
        max_length=_count(schema, "maxLength", path),
        patterns=tuple(_texts(schema, "pattern", path)),
        formats=tuple(_texts(schema, "format", path)),
        prefix=tuple(_list(schema, "prefixItems", path)),
        items=_subschema(schema, "items", path),
        min_items=_count(schema, "minItems", path) or 0,
        max_items=max_items,
        properties=tuple(_properties(schema, path)),
        required=tuple(dict.fromkeys(_names(schema, path))),
        additional=_subschema(schema, "additionalProperties", path),
        min_properties=_count(schema, "minProperties", path) or 0,
        max_properties=_count(schema, "maxProperties", path),
    )


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _types(schema: Mapping[str, Any], path: str) -> tuple[frozenset[str], bool]:
    """Types, and whether numbers must be whole."""
    if "type" not in schema:
        return TYPES, False
    given = schema["type"]
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str) or name not in TYPES | {"integer"}:
            allowed = ", ".join(sorted(TYPES | {"integer"}))
            refuse(f"{path}/type", f"{name!r} is no type; there are {allowed}")
    if "integer" in names and "number" not in names:
        return frozenset({*names, "number"} - {"integer"}), True
    return frozenset({*names} - {"integer"}), False


def _number(schema: Mapping[str, Any], name: str, path: str) -> Fraction | None:
    value = schema.get(name)
    if name not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        refuse(f"{path}/{name}", f"needs a number, not {kind_of(value)}")
    return Fraction(value)


def _count(schema: Mapping[str, Any], name: str, path: str) -> int | None:
    number = _number(schema, name, path)
    if number is None:
        return None
    if number.denominator != 1 or number < 0:
        refuse(f"{path}/{name}", "needs a whole number from 0 on")
    return int(number)


def _texts(schema: Mapping[str, Any], name: str, path: str) -> Iterator[str]:
    if name in schema:
        if not isinstance(schema[name], str):
            refuse(f"{path}/{name}", f"needs text, not {kind_of(schema[name])}")
        yield schema[name]


def _list(schema: Mapping[str, Any], name: str, path: str) -> list[Schema]:
    parts = schema.get(name, [])
    if not isinstance(parts, list):
        refuse(f"{path}/{name}", f"needs a list of schemas, not {kind_of(parts)}")
    return parts


def _subschema(schema: Mapping[str, Any], name: str, path: str) -> Schema:
    part = schema.get(name, True)
    if isinstance(part, list):
        refuse(f"{path}/{name}", "is one schema since draft 2020-12; a list is prefixItems")
    if not isinstance(part, (bool, dict)):
        refuse(f"{path}/{name}", f"needs a schema, not {kind_of(part)}")
    return part


def _properties(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Schema]]:
    parts = schema.get("properties", {})
    if not isinstance(parts, dict):
        refuse(f"{path}/properties", f"needs schemas by name, not {kind_of(parts)}")
    return iter(parts.items())


def _names(schema: Mapping[str, Any], path: str) -> list[str]:
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        refuse(f"{path}/required", "needs a list of names")
    return names
