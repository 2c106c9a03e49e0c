"""Normalization of the JSON Schemas of strict tools and strict response formats.

Keeps the keywords that constrained decoding knows, in a fixed order, makes every property required
and forbids others. Works in two passes: read the known shape, then check and complete objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from .body import (
    BodyError,
    describe,
    optional,
    read_any,
    read_bool,
    read_list,
    read_map,
    read_name,
    read_str,
    required,
)

_SCALARS = ("string", "number", "integer", "boolean", "null")
_TYPES = ("object", "string", "number", "integer", "boolean", "array", "null")
_FORMATS = ("email", "hostname", "ipv4", "ipv6", "uuid")
_LIMITS = (
    "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip


class StrictSchemaError(ValueError):
    """The schema has no normal form. `is_shape` tells an unknown shape from a broken rule."""

    def __init__(self, message: str, *, is_shape: bool) -> None:
        super().__init__(message)
        self.is_shape = is_shape


def normalize(schema: Any, *, allows_empty_root: bool, root_error: str) -> dict[str, Any]:
    """Return the normal form of a strict schema.

    Args:
        allows_empty_root: whether the root may have no properties.
        root_error: what to say of a root that is no object.

    Raises:
        StrictSchemaError: a keyword has the wrong form, or a rule is broken.
    """
    try:
        node = _read(schema)
    except BodyError as error:
        reason = str(error).removeprefix("invalid request body: ")
        raise StrictSchemaError(reason, is_shape=True) from None
    completed = _complete(node, allows_empty=allows_empty_root)
    if completed.get("type") != "object":
        raise StrictSchemaError(root_error, is_shape=False)
    return completed


def _read(schema: Any) -> dict[str, Any]:
    if isinstance(schema, dict):
        if "type" in schema:
            if isinstance(schema["type"], list):
                listed: dict[str, Any] = _in_field("type", lambda: _read_type_list(schema))
                return listed
            return _read_typed(schema)
        if "anyOf" in schema:
            branches = _in_field("anyOf", lambda: read_list(_read_typed)(schema["anyOf"]))
            return {"anyOf": branches, **_described(schema)}
        if "$ref" in schema:
            return {"$ref": _in_field("$ref", lambda: read_str(schema["$ref"]))}
    raise BodyError("one of `type`, `anyOf`, `$ref` field is required")


def _in_field(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BodyError as error:
        reason = str(error).removeprefix("invalid request body: ")
        raise BodyError(f"field `{name}`: {reason}") from None


def _read_type_list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": read_list(read_name(*_SCALARS))(schema["type"]), **_described(schema)}


def _read_typed(schema: Any) -> dict[str, Any]:
    fields = read_map(schema, "internally tagged enum JsonSchemaType")
    kind = required(fields, "type", read_any)
    if not isinstance(kind, str):
        raise BodyError(f"invalid type: {describe(kind)}, expected variant identifier")
    read_name(*_TYPES)(kind)
    match kind:
        case "object":
            return _read_object(fields)
        case "array":
            items = required(fields, "items", _read)
            return {"type": kind, "items": items, **_described(fields)}
        case "string":
            extra: dict[str, Any] = {
                "pattern": optional(fields, "pattern", read_str),
                "format": optional(fields, "format", read_name(*_FORMATS)),
                "enum": optional(fields, "enum", read_list(read_str)),
            }
        case "integer" | "number":
            reader = _read_i64 if kind == "integer" else _read_number
            extra = {name: optional(fields, name, reader) for name in _LIMITS}
        case _:
            extra = {}
    kept = {name: value for name, value in extra.items() if value is not None}
    return {"type": kind, **_described(fields), **kept}


def _read_object(fields: dict[str, Any]) -> dict[str, Any]:
    def read_properties(value: Any) -> dict[str, Any]:
        return {name: _read(item) for name, item in read_map(value, "a map").items()}

    return {
        "type": "object",
        "properties": optional(fields, "properties", read_properties) or {},
        "additionalProperties": optional(fields, "additionalProperties", read_bool),
        "required": optional(fields, "required", read_list(read_str)),
        **_described(fields),
    }


def _described(fields: dict[str, Any]) -> dict[str, Any]:
    description = optional(fields, "description", read_str)
    return {} if description is None else {"description": description}


def _read_i64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BodyError(f"invalid type: {describe(value)}, expected i64")
    if value >= 1 << 63:
        raise BodyError(f"invalid value: {describe(value)}, expected i64")
    return value


def _read_number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BodyError(f"invalid type: {describe(value)}, expected a JSON number")
    return value


def _complete(node: dict[str, Any], *, allows_empty: bool = False) -> dict[str, Any]:
    if "anyOf" in node:
        branches = [_complete(branch, allows_empty=allows_empty) for branch in node["anyOf"]]
        return node | {"anyOf": branches}
    if node.get("type") == "array":
        return node | {"items": _complete(node["items"])}
    if node.get("type") != "object":
        return node
    names = list(node["properties"])
    if not names and not allows_empty:
        raise _broken("An object with no properties is not allowed.")
    properties = {name: _complete(item) for name, item in node["properties"].items()}
    _check_required(properties, node["required"])
    if node["additionalProperties"]:
        raise _broken("additionalProperties should not be true")
    return node | {"properties": properties, "additionalProperties": False, "required": names}


def _check_required(properties: Collection[str], given: list[str] | None) -> None:
    if given is None:
        return
    seen: set[str] = set()
    for name in given:
        if name not in properties:
            raise _broken(f"Required property '{name}' not found in object")
        if name in seen:
            raise _broken(f"Duplicate required property '{name}'")
        seen.add(name)
    if len(seen) != len(properties):
        raise _broken("Required properties must match all properties in the object")


def _broken(message: str) -> StrictSchemaError:
    return StrictSchemaError(message, is_shape=False)
