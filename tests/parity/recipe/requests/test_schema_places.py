"""Every place of a subschema in every draft, with what may stand there: judged as by the oracle."""

import pytest

SITE = "json-schema.org/draft"
DRAFTS = [
    None, f"http://{SITE}-04/schema#", f"http://{SITE}-06/schema#", f"http://{SITE}-07/schema#",
    f"https://{SITE}/2019-09/schema", f"https://{SITE}/2020-12/schema",
]  # fmt: skip
SINGLE = [
    "not", "items", "additionalItems", "contains", "propertyNames", "additionalProperties",
    "unevaluatedItems", "unevaluatedProperties", "if", "then", "else", "contentSchema", "x",
    "default", "const",
]  # fmt: skip
LISTS = ["allOf", "anyOf", "oneOf", "prefixItems", "items", "enum", "x"]
MAPS = [
    "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions",
    "x",
]  # fmt: skip
PLACES = [
    *((keyword, lambda schema: schema) for keyword in SINGLE),
    *((keyword, lambda schema: [schema]) for keyword in LISTS),
    *((keyword, lambda schema: {"b": schema}) for keyword in MAPS),
]
HERE = {"$ref": "http://h/y"}
INNER = {"q": {"$id": "http://h/z", "id": "http://h/z", "$anchor": "k"}}
# What stands in the place, and what the root holds beside it.
CONTENTS = [
    *(({"$ref": draft.removesuffix("#")}, {}) for draft in DRAFTS[1:]),
    ({"$ref": "http://h/none"}, {}), ({"$ref": "none.json"}, {}), ({"$ref": "#none"}, {}),
    ({"$ref": "#/none"}, {}), ({"$dynamicRef": "#none"}, {}), ({"$recursiveRef": "#none"}, {}),
    ({"$anchor": "a"}, {"$ref": "#a"}), ({"$dynamicAnchor": "a"}, {"$ref": "#a"}),
    ({"$id": "http://h/y"}, HERE), ({"id": "http://h/y"}, HERE),
    ({"$id": "#a"}, {"$ref": "#a"}), ({"id": "#a"}, {"$ref": "#a"}),
    ({"$id": "http://h/y", "$ref": "#"}, HERE), ({"id": "http://h/y", "$ref": "#"}, HERE),
    ({"$id": "http://h/y", "$ref": "z"}, {"$defs": INNER, "definitions": INNER}),
    ({"id": "http://h/y", "$ref": "z"}, {"$defs": INNER, "definitions": INNER}),
    ({"$id": "http://h/y", "properties": {"q": {"$ref": "z"}}}, {}),
    ({"$id": "http://h/y", "$defs": INNER, "properties": {"q": {"$ref": "z"}}}, {}),
    ({"$id": "http://h/y", "$defs": INNER, "definitions": INNER}, {"$ref": "http://h/y#k"}),
    ({"$anchor": "a", "$ref": "#"}, {"$ref": "#a"}),
    ({"pattern": "("}, {}), ({"pattern": "[[a]]"}, {}), ({"$ref": "#", "pattern": "("}, {}),
    ({"patternProperties": {"(": {}}}, {}), ({"patternProperties": {"[[a]]": {}}}, {}),
    ({"type": "x"}, {}), ({"if": {"pattern": "("}}, {}),
]  # fmt: skip
BESIDE = [
    {}, {"items": [{}]}, {"then": {}}, {"unevaluatedProperties": False}, {"unevaluatedItems": {}},
]  # fmt: skip
"""What makes some keywords count: `additionalItems` and `if` do nothing alone."""


def is_accepted(api, schema):
    given = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "q"}]}
    request = api.ChatCompletionRequest(body | {"response_format": given})
    try:
        request.convert(api.ConversionOptions())
    except api.ConversionError:
        return False
    return True


@pytest.mark.parametrize("draft", DRAFTS)
def test_subschemas_count_in_the_same_places(oracle, ours, draft):
    different = []
    for keyword, place in PLACES:
        for content, root in CONTENTS:
            for beside in BESIDE:
                made = {**beside, keyword: place(content)}
                schema = {"type": "object", **root, "properties": {"p": made}}
                schema |= {"$schema": draft} if draft else {}
                if is_accepted(oracle, schema) != is_accepted(ours, schema):
                    different.append(schema)
    assert different == []
