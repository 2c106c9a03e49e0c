"""Whether a JSON value is a JSON Schema: shapes of the keywords, regular expressions, references.

One table per draft. Knows nothing of tools; it validates no instance against a schema.
"""

from __future__ import annotations

import re
from typing import Any

from ..jsontext import dumps_compact
from .json_draft import Check, Draft, SchemaError, is_uri, is_uri_reference
from .json_references import applied_schemas
from .regex_syntax import is_ecma_regex, is_regex

_SIMPLE_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def check_schema(schema: Any) -> None:
    """Check a schema against the draft that it names (2020-12 if none).

    Raises:
        SchemaError: it is no schema.
    """
    draft = _named_draft(schema)
    draft.check(schema)
    known = frozenset[str]().union(*(other.documents for other in _DRAFTS.values()))
    for used, is_target in applied_schemas(schema, draft, known):
        if is_target:
            draft.check(used)
        _check_patterns(used, draft)


def _named_draft(schema: Any) -> Draft:
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(name, str):
        return _LATEST
    address = name.removesuffix("#")
    if address in ("", "http://json-schema.org/schema"):
        return _LATEST
    draft = _DRAFTS.get(address.removeprefix("https:").removeprefix("http:"))
    if draft is None or (draft.documents and address.startswith("http:") and draft.anchors):
        raise SchemaError(
            f"Unknown meta-schema: '{name}'. Custom meta-schemas must be registered in the "
            "registry before use"
        )
    return draft


def _check_patterns(schema: dict[str, Any], draft: Draft) -> None:
    if draft.ref_hides_siblings and isinstance(schema.get("$ref"), str):
        return
    patterns = [schema.get("pattern"), *_keys(schema.get("patternProperties"))]
    for pattern in patterns:
        if isinstance(pattern, str) and not is_regex(pattern):
            raise SchemaError(f'{_show(pattern)} is not a "regex"')


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


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
                (_string_set if draft.has_booleans else _filled_string_set)(item, draft)
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


def _types(value: Any, draft: Draft) -> None:
    names = value if isinstance(value, list) else [value]
    is_named = all(isinstance(name, str) and name in _SIMPLE_TYPES for name in names)
    if not names or not is_named or len(set(names)) != len(names):
        raise _no_alternative(value)


def _uri(value: Any, draft: Draft) -> None:
    _typed("string")(value, draft)
    if not is_uri(value):
        raise SchemaError(f'{_show(value)} is not a "uri"')


def _uri_reference(value: Any, draft: Draft) -> None:
    _typed("string")(value, draft)
    if not is_uri_reference(value):
        raise SchemaError(f'{_show(value)} is not a "uri-reference"')


def _own_address(value: Any, draft: Draft) -> None:
    _matching("^[^#]*#?$")(value, draft)
    _uri_reference(value, draft)


def _regex(value: Any, draft: Draft) -> None:
    _typed("string")(value, draft)
    if draft.asserts_regex and not is_ecma_regex(value):
        raise SchemaError(f'{_show(value)} is not a "regex"')


def _count(value: Any, draft: Draft) -> None:
    _typed("integer")(value, draft)
    if isinstance(value, float) and not draft.has_booleans:  # draft 4 has no 2.0 among integers
        raise SchemaError(f'{_show(value)} is not of type "integer"')
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
    addresses=(_uri_reference, "id"),
    strings=(_typed("string"), "$schema title description format"),
    numbers=(_typed("number"), "maximum minimum"),
    positive=(_positive, "multipleOf"),
    booleans=(_typed("boolean"), "exclusiveMaximum exclusiveMinimum uniqueItems"),
    counts=(_count, "maxLength minLength maxItems minItems maxProperties minProperties"),
    regex=(_regex, "pattern"),
    either=(_schema_or_boolean, "additionalItems additionalProperties"),
    items=(_schema_or_list, "items"),
    names=(_filled_string_set, "required"),
    maps=(_schema_map, "definitions properties patternProperties"),
    dependencies=(_dependencies, "dependencies"),
    arrays=(_typed("array"), "enum"),
    types=(_types, "type"),
    lists=(_schema_list, "allOf anyOf oneOf"),
    schema=(_schema, "not"),
)
_DRAFT_6 = _DRAFT_4 | _table(
    addresses=(_uri_reference, "$id $ref"),
    absolute=(_uri, "$schema"),
    patterns=(_pattern_map, "patternProperties"),
    strings=(_typed("string"), "contentMediaType contentEncoding"),
    numbers=(_typed("number"), "exclusiveMaximum exclusiveMinimum"),
    schema=(_schema, "additionalItems additionalProperties contains propertyNames"),
    names=(_string_set, "required"),
    arrays=(_typed("array"), "examples enum"),
)
del _DRAFT_6["id"]
_DRAFT_7 = _DRAFT_6 | _table(
    strings=(_typed("string"), "$comment"),
    booleans=(_typed("boolean"), "readOnly"),
    schema=(_schema, "if then else"),
)
_DRAFT_2019 = _DRAFT_7 | _table(
    addresses=(_own_address, "$id"),
    anchors=(_matching("^[A-Za-z][-A-Za-z0-9.:_]*$"), "$anchor"),
    strings=(_typed("string"), "$recursiveRef $ref $schema"),
    booleans=(_typed("boolean"), "$recursiveAnchor deprecated writeOnly"),
    vocabulary=(_vocabulary, "$vocabulary"),
    maps=(_schema_map, "$defs dependentSchemas"),
    names=(_string_set_map, "dependentRequired"),
    counts=(_count, "maxContains minContains"),
    schema=(_schema, "contentSchema unevaluatedItems unevaluatedProperties"),
)
_ANCHORS_2020 = "$anchor $dynamicAnchor $recursiveAnchor"
_DRAFT_2020 = _DRAFT_2019 | _table(
    anchors=(_matching("^[A-Za-z_][-A-Za-z0-9._]*$"), _ANCHORS_2020),
    strings=(_typed("string"), "$dynamicRef"),
    lists=(_schema_list, "prefixItems"),
    schema=(_schema, "items"),
)
del _DRAFT_2020["additionalItems"]

_SITE = "//json-schema.org/draft"


def _old(keywords: dict[str, Check], number: int) -> Draft:
    is_first = number == 4
    return Draft(
        keywords,
        # A schema of draft 4 is searched wherever any draft has subschemas.
        frozenset(keywords | _DRAFT_2020 if is_first else keywords),
        frozenset([f"http:{_SITE}-{number:02}/schema"]),
        has_booleans=not is_first,
        asserts_regex=True,
        ref_hides_siblings=True,
        id_keyword="id" if is_first else "$id",
    )


def _documents(name: str, parts: str) -> frozenset[str]:
    base = f"https:{_SITE}/{name}/"
    return frozenset([f"{base}schema", *(f"{base}meta/{part}" for part in parts.split())])


_LATEST = Draft(
    _DRAFT_2020,
    frozenset(_DRAFT_2020) - {"dependencies"},  # used as in older drafts, but not searched
    _documents(
        "2020-12", "core applicator unevaluated validation meta-data format-annotation content"
    ),
    anchors=("$anchor", "$dynamicAnchor"),
    references=("$ref", "$dynamicRef"),
)
_DRAFTS = {
    f"{_SITE}-04/schema": _old(_DRAFT_4, 4),
    f"{_SITE}-06/schema": _old(_DRAFT_6, 6),
    f"{_SITE}-07/schema": _old(_DRAFT_7, 7),
    f"{_SITE}/2019-09/schema": Draft(
        _DRAFT_2019,
        frozenset(_DRAFT_2019),
        _documents("2019-09", "core applicator validation meta-data format content"),
        anchors=("$anchor",),
    ),
    f"{_SITE}/2020-12/schema": _LATEST,
}
