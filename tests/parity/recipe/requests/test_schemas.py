"""Random JSON Schemas of tools and answers, strict or not: accepted or refused as by the oracle.

Strict ones must come out in the same normal form. The wording of a refusal is not compared.
"""

import random

DRAFTS = [
    "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema#",
    "http://h/unknown", "https://json-schema.org/draft-07/schema",
]  # fmt: skip
REFERENCES = [
    "#", "#/$defs/a", "#/definitions/a", "#/$defs/zz", "#a", "#zz", "http://h/x", "http://h/x#a",
    "#/properties/b", "#/$defs/a/items/0", "#/$defs/~0~1", "#/$defs/%61", "x.json", "",
    "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema",
]  # fmt: skip
REGEX_PARTS = [
    "a", "b", ".", "^", "$", "*", "+", "?", "{2}", "{2,}", "{1,3}", "{3,1}", "{", "}", "(", ")",
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?<n>", "(?P<n>", "[", "]", "[^", "-", "a-z", "z-a", "|",
    "\\d", "\\D", "\\w", "\\s", "\\b", "\\B", "\\n", "\\\\", "\\p{L}", "\\p{Zz}", "\\pL", "\\u0041",
    "\\x41", "\\u{41}", "\\1", "\\k<n>", "\\c", "\\cA", "\\-", "\\/", "\\é", "é", "日", "\n", " ",
    "(?i)", "(?i:", "[[:alpha:]]", "&&", "\\", "\\z", "\\A", "\\_", "\\8", "\\0", "#",
]  # fmt: skip
TYPES = ["string", "number", "integer", "boolean", "null", "array", "object", "x"]
JUNK = [None, True, 0, -1, 1.5, 2.0, "x", "", [], ["a"], ["a", "a"], {}, {"a": {}}, 1e300, "object"]
NUMBERS = [0, 1, -1, 0.5, 2.0, 2**63, -(2**63) - 1, 1e-7, 1e300]


def regex(rng):
    return "".join(rng.choice(REGEX_PARTS) for _ in range(rng.choice([1, 1, 2, 3, 5])))


def schema_map(rng, depth):
    keys = ["a", "b", "é", "~/"]
    return {rng.choice(keys): schema(rng, depth - 1) for _ in range(rng.randrange(3))}


def pattern_map(rng, depth):
    return {regex(rng): schema(rng, depth - 1)}


def schema_list(rng, depth):
    return [schema(rng, depth - 1) for _ in range(rng.choice([1, 1, 2, 0]))]


def one_schema(rng, depth):
    return schema(rng, depth - 1)


def names(rng, depth):
    return rng.choice([["a"], ["a", "b"], [], ["a", "a"], ["z"], "a", [1]])


def number(rng, depth):
    return rng.choice(NUMBERS)


def count(rng, depth):
    return rng.choice([0, 1, 3, 2.0, -1, 1.5])


def flag(rng, depth):
    return rng.choice([True, False])


KEYWORDS = {
    "type": lambda rng, depth: rng.choice([rng.choice(TYPES), rng.sample(TYPES, 2), []]),
    "properties": schema_map, "patternProperties": pattern_map, "$defs": schema_map,
    "definitions": schema_map, "dependentSchemas": schema_map, "dependencies": schema_map,
    "additionalProperties": one_schema, "propertyNames": one_schema, "contains": one_schema,
    "items": lambda rng, depth: rng.choice([one_schema, schema_list])(rng, depth),
    "additionalItems": one_schema, "prefixItems": schema_list, "not": one_schema, "if": one_schema,
    "then": one_schema, "else": one_schema, "unevaluatedProperties": one_schema,
    "allOf": schema_list, "anyOf": schema_list, "oneOf": schema_list, "required": names,
    "dependentRequired": lambda rng, depth: {"a": names(rng, depth)},
    "enum": lambda rng, depth: rng.choice([[1], ["a", "b"], [], [1, 1], [1, 1.0], [None, {}]]),
    "const": lambda rng, depth: rng.choice([1, "a", None, [1]]), "title": lambda rng, depth: "t",
    "pattern": lambda rng, depth: regex(rng), "description": lambda rng, depth: "d",
    "format": lambda rng, depth: rng.choice(["email", "uuid", "x", "date-time", "ipv4"]),
    "minimum": number, "maximum": number, "exclusiveMinimum": number, "exclusiveMaximum": number,
    "multipleOf": number, "minLength": count, "maxItems": count, "minProperties": count,
    "uniqueItems": flag, "readOnly": flag, "default": lambda rng, depth: rng.choice(JUNK),
    "$ref": lambda rng, depth: rng.choice(REFERENCES),
    "$dynamicRef": lambda rng, depth: rng.choice(REFERENCES),
    "$id": lambda rng, depth: rng.choice(["http://h/x", "x", "#a", "", "http://h/x#"]),
    "$anchor": lambda rng, depth: rng.choice(["a", "b", "1", "", "a b"]),
    "$comment": lambda rng, depth: "c", "examples": lambda rng, depth: [1],
    "x": lambda rng, depth: 1,
}  # fmt: skip
USUAL = [
    "type",
    "properties",
    "items",
    "anyOf",
    "enum",
    "pattern",
    "required",
    "description",
    "$ref",
]


def schema(rng, depth):
    if depth < 0 or rng.random() < 0.05:
        return rng.choice([True, False, {}, {"type": "string"}, {"type": "integer"}])
    made = {}
    for _ in range(rng.randrange(4)):
        keyword = rng.choice(USUAL if rng.random() < 0.6 else list(KEYWORDS))
        if rng.random() < 0.03:
            made[keyword] = rng.choice(JUNK)
        else:
            made[keyword] = KEYWORDS[keyword](rng, depth)
    return made


def root(rng):
    made = schema(rng, 2)
    if isinstance(made, dict) and rng.random() < 0.85:
        made = {"type": "object"} | made if rng.random() < 0.3 else made | {"type": "object"}
    if isinstance(made, dict) and rng.random() < 0.3:
        made["$schema"] = rng.choice(DRAFTS)
    return made


def draw(seed):
    rng = random.Random(seed)
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}]}
    made, strict = root(rng), rng.choice([True, False, None])
    if rng.random() < 0.7:
        function = {"name": "f", "parameters": made, "strict": strict}
        body["tools"] = [{"type": "function", "function": function}]
    else:
        given = {"name": "n", "schema": made, "strict": strict}
        body["response_format"] = {"type": "json_schema", "json_schema": given}
    return {"request": "ChatCompletionRequest", "options": {}, "context": None, "body": body}


def test_schemas_are_judged_like_the_oracle(agree, convert, seeds):
    agree(seeds, draw, convert)
