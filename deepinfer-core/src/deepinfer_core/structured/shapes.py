"""JSON schemas as alternatives of plain shapes: references, `allOf`, `anyOf`, `oneOf` worked out.

A shape holds what remains: types, values, bounds, and the schemas of what is inside. Knows no
grammar.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from deepinfer_core.structured.json_values import canonical, fits, kind_of, parse, refuse
from deepinfer_core.structured.schema_keywords import (
    ANNOTATIONS,
    APPLICATORS,
    ASSERTIONS,
    REFUSED,
    Schema,
    Shape,
    read_assertions,
)

MAX_SHAPES = 256
MAX_DEPTH = 64


class ShapeReader:
    """Reads the parts of one schema.

    Args:
        root: what references start from.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._depth = 0
        self._asked: list[str] = []
        """Schemas whose emptiness is being found out."""
        self._filled: set[str] = set()
        """Schemas that something is valid for."""

    def shapes(self, schema: Schema, path: str) -> list[Shape]:
        """The alternatives of a schema; none: nothing is valid.

        Raises:
            GrammarError: a keyword is malformed or has no grammar; names its path.
        """
        if schema is True:
            return [Shape()]
        if schema is False:
            return []
        if not isinstance(schema, dict):
            refuse(path, f"a schema is an object, true or false, not {kind_of(schema)}")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            refuse(path, "schemas refer to each other without an end, or are nested too deeply")
        try:
            return self._of_object(schema, path)
        finally:
            self._depth -= 1

    def is_empty(self, schema: Schema, path: str) -> bool:
        """Whether nothing is valid, as far as that shows."""
        if isinstance(schema, bool):
            return not schema
        key = canonical(schema)
        if key in self._filled:
            return False
        if key in self._asked:
            return True  # a value that must hold another of its kind has no end
        self._asked.append(key)
        try:
            found = self.shapes(schema, path)
        finally:
            self._asked.pop()
        if found:
            self._filled.add(key)
        return not found

    def _of_object(self, schema: dict[str, Any], path: str) -> list[Shape]:
        self._check_keywords(schema, path)
        found = self._met([read_assertions(schema, path)], path)
        if "$ref" in schema:
            target, target_path = self.resolve(schema["$ref"], f"{path}/$ref")
            found = self._both(found, self.shapes(target, target_path), path)
        for index, part in self._branches(schema, "allOf", path):
            found = self._both(found, self.shapes(part, f"{path}/allOf/{index}"), path)
        if "anyOf" in schema:
            branches = [
                shape
                for index, part in self._branches(schema, "anyOf", path)
                for shape in self.shapes(part, f"{path}/anyOf/{index}")
            ]
            found = self._both(found, branches, path)
        if "oneOf" in schema:
            found = self._both(found, self._one_of(schema, path, found), path)
        for part, part_path in _dependent(schema, path):
            found = self._both(found, self.shapes(part, part_path), path)
        return found

    def _one_of(self, schema: dict[str, Any], path: str, context: list[Shape]) -> list[Shape]:
        branches = [
            self._both(context, self.shapes(part, f"{path}/oneOf/{index}"), path)
            for index, part in self._branches(schema, "oneOf", path)
        ]
        for second in range(len(branches)):
            for first in range(second):
                if self._both(branches[first], branches[second], path):
                    refuse(
                        f"{path}/oneOf",
                        f"branches {first} and {second} do not show that they exclude each other; "
                        "use anyOf, or tell them apart by a required property of constants",
                    )
        return [shape for branch in branches for shape in branch]

    def _both(self, left: list[Shape], right: list[Shape], path: str) -> list[Shape]:
        if len(left) * len(right) > MAX_SHAPES:
            refuse(path, f"more than {MAX_SHAPES} combinations of alternatives")
        return self._met([meet(a, b, path) for a in left for b in right], path)

    def _met(self, shapes: list[Shape], path: str) -> list[Shape]:
        """The shapes without the types that have no values; without those that have no type."""
        settled = [self._settle(shape, path) for shape in shapes]
        return [shape for shape in settled if shape.types and shape.values != ()]

    def _settle(self, shape: Shape, path: str) -> Shape:
        empty = set()
        whole = shape.interval.integers() if shape.is_whole else (None, None)
        crossed = whole[0] is not None and whole[1] is not None and whole[0] > whole[1]
        if shape.interval.is_empty or crossed:
            empty.add("number")
        if shape.max_length is not None and shape.min_length > shape.max_length:
            empty.add("string")
        shape = self._settle_array(shape, path)
        if shape.max_items is not None and shape.min_items > shape.max_items:
            empty.add("array")
        if "object" in shape.types and self._has_no_objects(shape, path):
            empty.add("object")
        shape = replace(shape, types=shape.types - empty)
        if shape.values is None:
            return shape
        fitting = tuple(text for text in shape.values if fits(parse(text), shape, path))
        return replace(shape, values=fitting)

    def _settle_array(self, shape: Shape, path: str) -> Shape:
        """An item that nothing is valid for ends the array before it."""
        if "array" not in shape.types:
            return shape
        parts = enumerate(shape.prefix)
        ends = [i for i, part in parts if self.is_empty(part, f"{path}/prefixItems/{i}")]
        if not ends and self.is_empty(shape.items, f"{path}/items"):
            ends = [len(shape.prefix)]
        if not ends:
            return shape
        most = ends[0] if shape.max_items is None else min(ends[0], shape.max_items)
        return replace(shape, prefix=shape.prefix[: ends[0]], items=False, max_items=most)

    def _has_no_objects(self, shape: Shape, path: str) -> bool:
        declared = dict(shape.properties)
        most, needed = shape.max_properties, len(shape.required)
        if most is not None and max(needed, shape.min_properties) > most:
            return True
        for name in shape.required:
            schema = declared.get(name, shape.additional)
            if self.is_empty(schema, f"{path}/properties/{name}"):
                return True
        return False

    def resolve(self, reference: object, path: str) -> tuple[Schema, str]:
        """What a reference within the schema means, and its path."""
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            refuse(path, f"{reference!r} is not within this schema; refer by #/$defs/...")
        found: Any = self._root
        for part in reference.split("/")[1:]:
            name = _unquote(part)
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                refuse(path, f"{reference!r} leads nowhere")
        return found, reference

    def _branches(
        self, schema: dict[str, Any], keyword: str, path: str
    ) -> Iterator[tuple[int, Schema]]:
        parts = schema.get(keyword)
        if keyword in schema and (not isinstance(parts, list) or not parts):
            refuse(f"{path}/{keyword}", "needs a list of schemas")
        return enumerate(parts or ())

    def _check_keywords(self, schema: dict[str, Any], path: str) -> None:
        for keyword in schema:
            if keyword == "$schema" and "json-schema.org/" not in str(schema[keyword]):
                refuse(f"{path}/$schema", "is no dialect that is known here; leave it out")
            if keyword in ASSERTIONS or keyword in APPLICATORS or keyword in ANNOTATIONS:
                continue
            if keyword == "uniqueItems" and schema[keyword] is False:
                continue
            if keyword == "$id" and schema is self._root:
                continue
            if keyword.startswith("x-"):
                continue
            if keyword in REFUSED:
                refuse(f"{path}/{keyword}", f"cannot be enforced; {REFUSED[keyword]}")
            known = (*ASSERTIONS, *APPLICATORS, *ANNOTATIONS)
            close = difflib.get_close_matches(keyword, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "leave it out"
            refuse(f"{path}/{keyword}", f"is no keyword that is known here; {hint}")


def _dependent(schema: dict[str, Any], path: str) -> Iterator[tuple[Schema, str]]:
    """What depends on a property, as schemas: the property is not there, or this is valid."""
    for keyword in ("dependentRequired", "dependentSchemas"):
        parts = schema.get(keyword, {})
        if not isinstance(parts, dict):
            refuse(f"{path}/{keyword}", "needs an object with names of properties")
        for name, part in parts.items():
            wanted = {"required": part} if keyword == "dependentRequired" else part
            either = [{"properties": {name: False}}, wanted]
            yield {"anyOf": either}, f"{path}/{keyword}/{name}"


def meet(a: Shape, b: Shape, path: str) -> Shape:
    """What is valid for both."""
    values = a.values if b.values is None else b.values
    if a.values is not None and b.values is not None:
        both = {canonical(parse(text)) for text in b.values}
        values = tuple(text for text in a.values if canonical(parse(text)) in both)
    prefix = tuple(
        conjunction(_item(a, i), _item(b, i)) for i in range(max(len(a.prefix), len(b.prefix)))
    )
    names = dict.fromkeys([name for name, _ in (*a.properties, *b.properties)])
    properties = tuple(
        (name, conjunction(_property(a, name), _property(b, name))) for name in names
    )
    return Shape(
        types=a.types & b.types,
        is_whole=a.is_whole or b.is_whole,
        values=values,
        interval=a.interval.meet(b.interval),
        min_length=max(a.min_length, b.min_length),
        max_length=_least(a.max_length, b.max_length),
        patterns=tuple(dict.fromkeys((*a.patterns, *b.patterns))),
        formats=tuple(dict.fromkeys((*a.formats, *b.formats))),
        prefix=prefix,
        items=conjunction(a.items, b.items),
        min_items=max(a.min_items, b.min_items),
        max_items=_least(a.max_items, b.max_items),
        properties=properties,
        required=tuple(dict.fromkeys((*a.required, *b.required))),
        additional=conjunction(a.additional, b.additional),
        min_properties=max(a.min_properties, b.min_properties),
        max_properties=_least(a.max_properties, b.max_properties),
    )


def conjunction(a: Schema, b: Schema) -> Schema:
    """A schema for what is valid for both."""
    if a is True or a == b:
        return b
    if b is True:
        return a
    return False if a is False or b is False else {"allOf": [a, b]}


def _item(shape: Shape, index: int) -> Schema:
    return shape.prefix[index] if index < len(shape.prefix) else shape.items


def _property(shape: Shape, name: str) -> Schema:
    return dict(shape.properties).get(name, shape.additional)


def _least(a: int | None, b: int | None) -> int | None:
    given = [value for value in (a, b) if value is not None]
    return min(given, default=None)


def _unquote(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")
