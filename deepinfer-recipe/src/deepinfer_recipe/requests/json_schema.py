"""Whether a JSON value is a JSON Schema: shapes of the keywords, regular expressions, references.

One table per draft. Knows nothing of tools; it validates no instance against a schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ..jsontext import dumps_compact
from .json_references import check_references
from .regex_syntax import is_regex


class SchemaError(ValueError):
    """The value is no JSON Schema; the message says why."""


Check: TypeAlias = Callable[[Any, "Draft"], None]
_SIMPLE_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


class Draft:
    """The keywords of one draft and whether `true` and `false` are schemas."""

    def __init__(self, keywords: dict[str, Check], *, has_booleans: bool = True) -> None:
        self.keywords = keywords
        self.has_booleans = has_booleans

    def check(self, schema: Any) -> None:
        """Raise SchemaError if the value is no schema of this draft."""
        if self.has_booleans and isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            kinds = 'types "boolean", "object"' if self.has_booleans else 'type "object"'
            raise SchemaError(f"{_show(schema)} is not of {kinds}")
        for keyword, value in schema.items():
            check = self.keywords.get(keyword)
            if check is not None:
                check(value, self)


def check_schema(schema: Any) -> None:
    """Check a schema against the draft that it names (2020-12 if none).

    Raises:
        SchemaError: it is no schema.
    """
    draft = _DRAFTS[_DEFAULT]
    if isinstance(schema, dict) and isinstance(schema.get("$schema"), str):
        name = schema["$schema"].rstrip("#")
        if name not in _DRAFTS:
            raise SchemaError(
                f"Unknown meta-schema: '{schema['$schema']}'. Custom meta-schemas must be "
                "registered in the registry before use"
            )
        draft = _DRAFTS[name]
    draft.check(schema)
    problem = check_references(schema, frozenset(_DRAFTS))
    if problem is not None:
        raise SchemaError(problem)


def _show(value: Any) -> str:
    return dumps_compact(value)


def _is_type(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return kind == "number" or isinstance(value, int) or value.is_integer()


def _typed(kind: str) -> Check:
    def check(value: Any, draft: Draft) -> None:
        if not _is_type(value, kind):
            raise SchemaError(f'{_show(value)} is not of type "{kind}"')

    return check


def _matching(pattern: str) -> Check:
    def check(value: Any, draft: Draft) -> None:
        _typed("string")(value, draft)
        if re.search(pattern, value) is None:
            raise SchemaError(f'{_show(value)} does not match "{pattern}"')

    return check


def _schema(value: Any, draft: Draft) -> None:
    draft.check(value)


def _schema_list(value: Any, draft: Draft) -> None:
    _typed("array")(value, draft)
    if not value:
        raise SchemaError("[] has less than 1 item")
    for item in value:
        draft.check(item)


def _schema_or_list(value: Any, draft: Draft) -> None:
    try:
        if isinstance(value, list):
            _schema_list(value, draft)
        else:
            draft.check(value)
    except SchemaError:
        raise _no_alternative(value) from None


def _schema_or_boolean(value: Any, draft: Draft) -> None:
    if not isinstance(value, bool):
        try:
            draft.check(value)
        except SchemaError:
            raise _no_alternative(value) from None


def _schema_map(value: Any, draft: Draft) -> None:
    _typed("object")(value, draft)
    for item in value.values():
        draft.check(item)


def _pattern_map(value: Any, draft: Draft) -> None:
    _schema_map(value, draft)
    for pattern in value:
        _regex(pattern, draft)


def _dependencies(value: Any, draft: Draft) -> None:
    _typed("object")(value, draft)
    for item in value.values():
        try:
            if isinstance(item, list):
                _string_set(item, draft)
            else:
                draft.check(item)
        except SchemaError:
            raise _no_alternative(item) from None


def _string_set(value: Any, draft: Draft) -> None:
    _typed("array")(value, draft)
    for item in value:
        _typed("string")(item, draft)
    _unique(value, draft)


def _filled_string_set(value: Any, draft: Draft) -> None:
    _string_set(value, draft)
    _filled(value, draft)


def _string_set_map(value: Any, draft: Draft) -> None:
    _typed("object")(value, draft)
    for item in value.values():
        _string_set(item, draft)


def _filled(value: Any, draft: Draft) -> None:
    if not value:
        raise SchemaError("[] has less than 1 item")


def _unique(value: list[Any], draft: Draft) -> None:
    texts = [_show(item) for item in value]
    if len(set(texts)) != len(texts):
        raise SchemaError(f"{_show(value)} has non-unique elements")


def _filled_set(value: Any, draft: Draft) -> None:
    _typed("array")(value, draft)
    _filled(value, draft)
    _unique(value, draft)


def _types(value: Any, draft: Draft) -> None:
    names = value if isinstance(value, list) else [value]
    is_named = all(isinstance(name, str) and name in _SIMPLE_TYPES for name in names)
    if not names or not is_named or len(set(names)) != len(names):
        raise _no_alternative(value)


def _regex(value: Any, draft: Draft) -> None:
    _typed("string")(value, draft)
    if not is_regex(value):
        raise SchemaError(f'{_show(value)} is not a "regex"')


def _count(value: Any, draft: Draft) -> None:
    _typed("integer")(value, draft)
    if value < 0:
        raise SchemaError(f"{_show(value)} is less than the minimum of 0")


def _positive(value: Any, draft: Draft) -> None:
    _typed("number")(value, draft)
    if value <= 0:
        raise SchemaError(f"{_show(value)} is less than or equal to the minimum of 0")


def _vocabulary(value: Any, draft: Draft) -> None:
    _typed("object")(value, draft)
    for item in value.values():
        _typed("boolean")(item, draft)


def _no_alternative(value: Any) -> SchemaError:
    return SchemaError(
        f"{_show(value)} is not valid under any of the schemas listed in the 'anyOf' keyword"
    )


def _table(**groups: tuple[Check, str]) -> dict[str, Check]:
    return {name: check for check, names in groups.values() for name in names.split()}


_DRAFT_4 = _table(
    strings=(_typed("string"), "$schema id title description format $ref"),
    numbers=(_typed("number"), "maximum minimum"),
    positive=(_positive, "multipleOf"),
    booleans=(_typed("boolean"), "exclusiveMaximum exclusiveMinimum uniqueItems"),
    counts=(_count, "maxLength minLength maxItems minItems maxProperties minProperties"),
    regex=(_regex, "pattern"),
    either=(_schema_or_boolean, "additionalItems additionalProperties"),
    items=(_schema_or_list, "items"),
    names=(_filled_string_set, "required"),
    maps=(_schema_map, "definitions properties"),
    patterns=(_pattern_map, "patternProperties"),
    dependencies=(_dependencies, "dependencies"),
    enum=(_filled_set, "enum"),
    types=(_types, "type"),
    lists=(_schema_list, "allOf anyOf oneOf"),
    schema=(_schema, "not"),
)
_DRAFT_6 = _DRAFT_4 | _table(
    strings=(_typed("string"), "$id"),
    numbers=(_typed("number"), "exclusiveMaximum exclusiveMinimum"),
    schema=(_schema, "additionalItems additionalProperties contains propertyNames"),
    names=(_string_set, "required"),
    arrays=(_typed("array"), "examples enum"),
)
_DRAFT_7 = _DRAFT_6 | _table(
    strings=(_typed("string"), "$comment contentMediaType contentEncoding"),
    booleans=(_typed("boolean"), "readOnly"),
    schema=(_schema, "if then else"),
)
_DRAFT_2019 = _DRAFT_7 | _table(
    ids=(_matching("^[^#]*#?$"), "$id"),
    anchors=(_matching("^[A-Za-z][-A-Za-z0-9.:_]*$"), "$anchor"),
    strings=(_typed("string"), "$recursiveRef"),
    booleans=(_typed("boolean"), "$recursiveAnchor deprecated writeOnly"),
    vocabulary=(_vocabulary, "$vocabulary"),
    maps=(_schema_map, "$defs dependentSchemas"),
    names=(_string_set_map, "dependentRequired"),
    counts=(_count, "maxContains minContains"),
    schema=(_schema, "contentSchema unevaluatedItems unevaluatedProperties"),
)
_DRAFT_2020 = _DRAFT_2019 | _table(
    anchors=(_matching("^[A-Za-z_][-A-Za-z0-9._]*$"), "$anchor $dynamicAnchor"),
    strings=(_typed("string"), "$dynamicRef"),
    lists=(_schema_list, "prefixItems"),
    schema=(_schema, "items"),
)
for _gone in ("id", "additionalItems", "$recursiveRef", "$recursiveAnchor"):
    _DRAFT_2020.pop(_gone, None)

_DEFAULT = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": Draft(_DRAFT_4, has_booleans=False),
    "http://json-schema.org/draft-06/schema": Draft(_DRAFT_6),
    "http://json-schema.org/draft-07/schema": Draft(_DRAFT_7),
    "https://json-schema.org/draft/2019-09/schema": Draft(_DRAFT_2019),
    _DEFAULT: Draft(_DRAFT_2020),
}
