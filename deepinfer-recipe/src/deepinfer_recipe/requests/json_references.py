"""Whether the references inside a JSON Schema lead somewhere.

Looks only where a validator would: a reference in an unused definition or in data is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

_SCHEMAS = (
    "not", "items", "additionalItems", "contains", "propertyNames", "additionalProperties",
    "unevaluatedItems", "unevaluatedProperties", "if",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def check_references(root: Any, known_documents: frozenset[str]) -> str | None:
    """Return what is wrong with the first broken reference, or None.

    Args:
        known_documents: addresses that always lead somewhere.
    """
    documents, anchors = {"": root}, set[str]()
    base = _index(root, "", documents, anchors)
    seen: set[int] = set()
    todo = [(root, base)]
    while todo:
        schema, base = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        base = _join(base, schema)
        for keyword in _REFERENCES:
            reference = schema.get(keyword)
            if isinstance(reference, str):
                target, problem = _resolve(reference, base, documents, anchors, known_documents)
                if problem is not None:
                    return problem
                todo.append((target, base))
        todo.extend((child, base) for child in _applied(schema))
    return None


def _join(base: str, schema: dict[str, Any]) -> str:
    name = schema.get("$id")
    return urljoin(base, name.rstrip("#")) if isinstance(name, str) else base


def _index(schema: Any, base: str, documents: dict[str, Any], anchors: set[str]) -> str:
    """Collect addresses and anchors of all subschemas; return the address of this one."""
    if not isinstance(schema, dict):
        return base
    base = _join(base, schema)
    if isinstance(schema.get("$id"), str):
        documents[base] = schema
    for keyword in ("$anchor", "$dynamicAnchor"):
        if isinstance(schema.get(keyword), str):
            anchors.add(f"{base}#{schema[keyword]}")
    for child in [*_applied(schema, everything=True)]:
        _index(child, base, documents, anchors)
    return base


def _applied(schema: dict[str, Any], *, everything: bool = False) -> Iterator[Any]:
    for keyword in _SCHEMAS:
        is_used = keyword != "if" or "then" in schema or "else" in schema
        if keyword in schema and (is_used or everything):
            yield schema[keyword]
    for keyword in ("then", "else"):
        if keyword in schema and ("if" in schema or everything):
            yield schema[keyword]
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            yield from schema[keyword]
    for keyword in _MAPS + (_DEFINITIONS if everything else ()):
        if isinstance(schema.get(keyword), dict):
            yield from schema[keyword].values()


def _resolve(
    reference: str,
    base: str,
    documents: dict[str, Any],
    anchors: set[str],
    known_documents: frozenset[str],
) -> tuple[Any, str | None]:
    address, fragment = urldefrag(urljoin(base, reference) if base else reference)
    if address.rstrip("#") in known_documents:
        return None, None
    if address not in documents:
        problem = f"Resource '{address}' is not present in a registry and retrieving it failed"
        return None, f"{problem}: Retrieval is disabled, cannot fetch {address}"
    if fragment and not fragment.startswith("/"):
        if f"{address}#{fragment}" in anchors:
            return None, None
        return None, f"Anchor '{fragment}' does not exist"
    target = documents[address]
    for step in unquote(fragment).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None, f"Pointer '{unquote(fragment)}' does not exist"
    if not isinstance(target, dict | bool):
        return None, f'{target!r} is not of types "boolean", "object"'
    return target, None
