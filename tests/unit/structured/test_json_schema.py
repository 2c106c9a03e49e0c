"""A schema's grammar has the texts that are valid, and nothing else; or it is refused by path."""

import json

import pytest
from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
CLOSED = {"type": "object", "additionalProperties": False}
CASES = [
    (
        True,
        ["null", "-1.5e3", '{"a":[true,{}]}', '"\\u00e9\\n"'],
        ["", "nul", "01", "{a:1}", "[1,]"],
    ),
    ({"type": "null"}, ["null"], ["0", '""']),
    ({"type": ["integer", "boolean"]}, ["true", "-7"], ["1.5", "null", '"a"']),
    ({"enum": ["a", 1, None, {"b": [2]}]}, ['"a"', "1", "null", '{"b": [2]}'], ['"b"', "2", "{}"]),
    ({"const": "x"}, ['"x"'], ['"y"', "1"]),
    ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "9", "12"], ["-4", "13", "99"]),
    (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
        ["0.1", "1", "1.5", "0.0001", "1.50"],
        ["0", "0.0", "1.51", "2", "-1"],
    ),
    ({"type": "string", "minLength": 1, "maxLength": 2}, ['"é"', '"ab"'], ['""', '"abc"']),
    ({"type": "string", "pattern": "^a+$"}, ['"aaa"'], ['""', '"ab"']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-13-01"']),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1]", "[ 1 , 2 ]"],
        ["[]", "[1,2,3]", '["a"]'],
    ),
    (
        {"prefixItems": [{"type": "integer"}], "items": False, "type": "array"},
        ["[]", "[1]"],
        ["[1,2]", "[true]"],
    ),
    (
        {
            **CLOSED,
            "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
            "required": ["a"],
        },
        ['{"a":1}', '{"a": 1, "b": null}'],
        ["{}", '{"b":null}', '{"a":1,"c":2}', '{"a":1,}'],
    ),
    # Only `{}` was valid for this in another engine.
    ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":[],"z":{}}'], ["{}", '{"z":1}']),
    (
        {"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
        ['{"ab":1,"a":null,"abc":null,"b":null}', "[]"],
        ['{"ab":null}', '{"a":1}', '{"\\u0061b":null}'],
    ),
    (TREE, ['{"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]}'], ['{"kids":[]}', '{"v":1,"kids":[{}]}']),
    (
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        ["3", "5"],
        ["2", "6", '"a"'],
    ),
    ({"anyOf": [{"type": "null"}, {"const": 3}]}, ["null", "3"], ["4"]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "3"], ["null", "1.5"]),
    (
        {**CLOSED, "properties": {"a": True, "b": True}, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":1}', '{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    (
        {
            **CLOSED,
            "properties": {"a": True, "b": {"type": "integer"}},
            "dependentSchemas": {"a": {"properties": {"b": {"maximum": 9}}}},
        },
        ['{"b":10}', '{"a":1,"b":9}'],
        ['{"a":1,"b":10}'],
    ),
    (
        {
            "properties": {
                "v": {"type": "null"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
            "type": "object",
        },
        ['{"v":null,"next":{"v":null,"next":null}}'],
        ['{"v":null}', '{"v":null,"next":{}}'],
    ),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, ['{"a":1}'], ["{}"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=[json.dumps(c[0]) for c in CASES])
def test_texts_belong_as_the_schema_says(matches, schema, good, bad):
    assert [text for text in good if not matches(text, json_schema=schema)] == []
    assert [text for text in bad if matches(text, json_schema=schema)] == []


REFUSED = [
    ({"not": {"type": "null"}}, "#/not"),
    ({"properties": {"a": {"uniqueItems": True}}}, "#/properties/a/uniqueItems"),
    ({"items": {"contains": {}}}, "#/items/contains"),
    ({"if": {}, "then": {}}, "#/if"),
    ({"patternProperties": {"^x_": {}}}, "#/patternProperties"),
    ({"propertyNames": {}}, "#/propertyNames"),
    ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
    ({"multipleOf": 2}, "#/multipleOf"),
    ({"type": "string", "format": "iri"}, "#/format"),
    ({"type": "text"}, "#/type"),
    ({"type": 3}, "#/type"),
    ({"required": "a"}, "#/required"),
    ({"properties": []}, "#/properties"),
    ({"items": [{}]}, "#/items"),
    ({"minimum": "1"}, "#/minimum"),
    ({"minLength": -1}, "#/minLength"),
    ({"anyOf": []}, "#/anyOf"),
    ({"enum": "a"}, "#/enum"),
    ({"$ref": "#"}, "#"),
    ({"$ref": "#/$defs/a"}, "#/$ref"),
    ({"$ref": "http://elsewhere/a.json"}, "#/$ref"),
    ({"$schema": "http://elsewhere/dialect"}, "#/$schema"),
    ({"propertis": {}}, "#/propertis"),
    ({"type": "string", "pattern": "a(?=b)"}, "#/pattern"),
    ({"type": "string", "pattern": "("}, "#/pattern"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "#"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#"),
    ({"dependentRequired": []}, "#/dependentRequired"),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=[json.dumps(c[0]) for c in REFUSED])
def test_what_cannot_be_held_is_refused_by_path(schema, path):
    with pytest.raises(GrammarError) as caught:
        to_notation(StructuredOutput(json_schema=schema), max_whitespace=2)
    assert str(caught.value).startswith(f"structured.json_schema: {path}: ")
    assert len(str(caught.value)) > len(path) + 30


def test_whitespace_is_bounded(matches):
    schema = {"type": "array", "items": {"type": "null"}}
    assert matches("[  null]", json_schema=schema)
    assert not matches("[   null]", json_schema=schema)
    assert not matches("[ null]", json_schema={"type": "array"}, max_whitespace=0)


def test_a_request_may_bound_whitespace_itself(matches):
    form = {"json_schema": {"type": "array"}}
    assert matches("[1, 2]", **form)
    spec = StructuredOutput(**form, max_whitespace=0)
    _, text = to_notation(spec, max_whitespace=8)
    assert "{0,8}" not in text


def test_a_deep_schema_is_refused_and_not_followed_for_ever():
    schema = {"type": "integer"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="nested too deeply"):
        to_notation(StructuredOutput(json_schema=schema), max_whitespace=2)
