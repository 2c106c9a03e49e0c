"""Structural tags: the JSON schemas in them become our grammars, so that they are held as well."""

from __future__ import annotations

import json
from typing import Any

from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.json_schema import schema_rules

FIELD = "structured.structural_tag"


def with_our_schemas(tag: str, max_whitespace: int) -> str:
    """A structural tag whose formats of type `json_schema` are grammars.

    Raises:
        GrammarError: a schema cannot be enforced, or is to be written as something other than JSON.
    """
    return json.dumps(_replaced(json.loads(tag), max_whitespace), ensure_ascii=False)


def _replaced(value: Any, max_whitespace: int) -> Any:
    if isinstance(value, list):
        return [_replaced(part, max_whitespace) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema":
        if value.get("style", "json") != "json":
            raise GrammarError(
                f"{FIELD}: a json_schema of style {value['style']!r} is not supported; write its "
                "parts as tags",
                field=FIELD,
            )
        schema = json.dumps(value.get("json_schema"), ensure_ascii=False)
        try:
            rules = schema_rules(schema, max_whitespace=max_whitespace)
        except GrammarError as error:
            raise GrammarError(f"{FIELD}: {error}", field=FIELD) from error
        return {"type": "grammar", "grammar": rules}
    if value.get("type") == "qwen_xml_parameter":
        raise GrammarError(
            f"{FIELD}: qwen_xml_parameter is not supported; write its parts as tags", field=FIELD
        )
    return {key: _replaced(part, max_whitespace) for key, part in value.items()}
