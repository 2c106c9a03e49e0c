"""Forms of answers as grammars in a notation that backends read.

JSON schemas, regular expressions and choices become rules here, so that they mean the same with
every backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer_core.plugin_api.grammar import Notation
from deepinfer_core.structured.ebnf import Rules, literal
from deepinfer_core.structured.json_schema import schema_rules
from deepinfer_core.structured.markup import markup_rules
from deepinfer_core.structured.regex import regex_rules
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.structured.structural_tag import with_our_schemas

ANY_OBJECT = '{"type":"object"}'


def to_notation(
    spec: StructuredOutput, *, max_whitespace: int, marks: Mapping[str, str] | None = None
) -> tuple[Notation, str]:
    """The notation and the text of a form.

    Args:
        marks: what stands for each token that markup may name (`marks.py`).

    Raises:
        GrammarError: it is malformed or cannot be enforced; names where.
    """
    if spec.max_whitespace is not None:
        max_whitespace = spec.max_whitespace
    if spec.grammar is not None:
        return "ebnf", spec.grammar
    if spec.lark is not None:
        return "lark", spec.lark
    if spec.structural_tag is not None:
        return "structural_tag", with_our_schemas(spec.structural_tag, max_whitespace)
    if spec.markup is not None:
        return "ebnf", markup_rules(spec.markup, marks or {}, max_whitespace=max_whitespace)
    if spec.choice is not None:
        return "ebnf", Rules(" | ".join(map(literal, dict.fromkeys(spec.choice)))).text()
    if spec.regex is not None:
        return "ebnf", regex_rules(spec.regex, field="structured.regex")
    schema = ANY_OBJECT if spec.json_schema is None else spec.json_schema
    return "ebnf", schema_rules(schema, max_whitespace=max_whitespace)
