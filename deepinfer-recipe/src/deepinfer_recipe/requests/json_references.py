"""The subschemas that a JSON Schema applies, found through its references.

Knows where subschemas stand and how references are resolved; what a keyword may hold is checked
elsewhere. A broken reference counts only where a validator would follow it, but another document
counts wherever it is named.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import Flag, auto
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..jsontext import dumps_compact
from .json_draft import Draft, SchemaError

_SCHEMAS = (
    "not", "items", "additionalItems", "contains", "propertyNames", "additionalProperties",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_LISTS = (*_IN_PLACE_LISTS, "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_META_DEFINITIONS = "/definitions/"


class _Tracked(Flag):
    """What a validator finds out about an instance beside its validity.

    `unevaluatedProperties` and `unevaluatedItems` ask for it in all that applies to the instance,
    and then more of a schema is used: an `if` alone, and `$dynamicRef` before it was a reference.
    """

    PROPERTIES = auto()
    ITEMS = auto()


def applied_schemas(root: Any, draft: Draft, known: frozenset[str]) -> Iterator[tuple[Any, bool]]:
    """Yield each subschema that a validator would use, and whether a reference led to it.

    Args:
        known: addresses that may be named though nothing is there to be used.

    Raises:
        SchemaError: a reference leads nowhere.
    """
    index = _Index(root, draft)
    index.check_documents(known)
    seen: dict[int, _Tracked] = {}
    todo = [(root, index.base(root, ""), False, _Tracked(0))]
    while todo:
        schema, base, is_target, tracked = todo.pop()
        if not isinstance(schema, dict):
            continue
        tracked |= _own_tracking(schema, draft)
        if id(schema) in seen and tracked in seen[id(schema)]:
            continue
        seen[id(schema)] = seen.get(id(schema), _Tracked(0)) | tracked
        yield schema, is_target
        base = index.base(schema, base)
        hides_siblings = False
        for keyword in (*draft.references, "$dynamicRef") if tracked else draft.references:
            reference = schema.get(keyword)
            if keyword in schema and not isinstance(reference, str):
                # Draft 4 says nothing of references; those of schemas in use must be text.
                raise SchemaError(f'{dumps_compact(reference)} is not of type "string"')
            if isinstance(reference, str):
                todo.append((index.resolve(reference, base), base, True, tracked))
                hides_siblings = draft.ref_hides_siblings
        if not hides_siblings:
            todo.extend(
                (child, base, False, tracked & kept)
                for child, kept in _used(schema, draft, tracked)
            )


class _Index:
    """The documents and anchors inside a schema, by their addresses."""

    def __init__(self, root: Any, draft: Draft) -> None:
        self._root = root
        self._draft = draft
        self._documents = {"": root}
        self._anchors: dict[str, Any] = {}
        self._named: set[str] = set()
        for schema, base in self._walk():
            name = self._name(schema)
            if name is not None:
                self._documents[base] = schema
                if name.startswith("#") and not draft.anchors:
                    self._anchors[f"{base}{name}"] = schema
            for keyword in draft.anchors:
                if isinstance(schema.get(keyword), str):
                    self._anchors[f"{base}#{schema[keyword]}"] = schema

    def base(self, schema: Any, base: str) -> str:
        """Return the address of a schema inside a document with the address `base`."""
        name = self._name(schema)
        return base if name is None or name.startswith("#") else urljoin(base, name.rstrip("#"))

    def _name(self, schema: Any) -> str | None:
        if not isinstance(schema, dict):
            return None
        if self._draft.ref_hides_siblings and isinstance(schema.get("$ref"), str):
            return None
        name = schema.get(self._draft.id_keyword)
        return name if isinstance(name, str) else None

    def check_documents(self, known: frozenset[str]) -> None:
        """Check that every document that is named is there."""
        for schema, base in self._walk():
            reference = schema.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                address = urldefrag(_join(base, reference))[0]
                self._named.add(address)
                if address not in known:
                    self._document(address)

    def resolve(self, reference: str, base: str) -> Any:
        """Return the schema that a reference leads to, None for one outside.

        Raises:
            SchemaError: it leads nowhere.
        """
        address, fragment = urldefrag(_join(base, reference))
        document = self._document(address)
        if document is None:
            if fragment and not fragment.startswith(_META_DEFINITIONS):
                raise SchemaError(f"Pointer '{unquote(fragment)}' does not exist")
            return None
        if fragment and not fragment.startswith("/"):
            if f"{address}#{fragment}" not in self._anchors:
                raise SchemaError(f"Anchor '{fragment}' does not exist")
            return self._anchors[f"{address}#{fragment}"]
        return _at(document, unquote(fragment))

    def _document(self, address: str) -> Any:
        if address in self._documents:
            return self._documents[address]
        if address in self._draft.documents and address in self._named:
            return None
        raise SchemaError(
            f"Resource '{address}' is not present in a registry and retrieving it failed"
        )

    def _walk(self) -> Iterator[tuple[dict[str, Any], str]]:
        todo = [(self._root, "")]
        while todo:
            schema, base = todo.pop()
            if isinstance(schema, dict):
                base = self.base(schema, base)
                yield schema, base
                todo.extend((child, base) for child in _all(schema, self._draft.indexed))


def _join(base: str, reference: str) -> str:
    return urljoin(base, reference) if base else reference


def _at(document: Any, pointer: str) -> Any:
    target = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            raise SchemaError(f"Pointer '{pointer}' does not exist")
    return target


def _own_tracking(schema: dict[str, Any], draft: Draft) -> _Tracked:
    tracked = _Tracked(0)
    for kind in _Tracked:
        keyword = f"unevaluated{kind.name.capitalize() if kind.name else ''}"
        if keyword in draft.keywords and schema.get(keyword, True) is not True:
            tracked |= kind
    return tracked


def _used(
    schema: dict[str, Any], draft: Draft, tracked: _Tracked
) -> Iterator[tuple[Any, _Tracked]]:
    """Yield the subschemas that a validator would use, and what may be tracked in them."""
    everything, nothing = ~_Tracked(0), _Tracked(0)
    has_branch = "then" in schema or "else" in schema
    for keyword in _SCHEMAS:
        if keyword not in schema or keyword not in draft.keywords:
            continue
        if keyword == "additionalItems" and not isinstance(schema.get("items"), list):
            continue
        yield schema[keyword], nothing
    if "if" in schema and "if" in draft.keywords and (has_branch or tracked):
        names = ("if", "then", "else")
        yield from ((schema[name], everything) for name in names if name in schema)
    for keyword, child in _many(schema, draft.keywords, _MAPS):
        if keyword in _IN_PLACE_LISTS:
            yield child, everything
        else:
            yield child, _Tracked.PROPERTIES if keyword == "dependentSchemas" else nothing


def _all(schema: dict[str, Any], keywords: Container[str]) -> Iterator[Any]:
    """Yield all subschemas, used or not."""
    for keyword in (*_SCHEMAS, "if", "then", "else", "contentSchema"):
        if keyword in keywords and keyword in schema:
            yield schema[keyword]
    yield from (child for _, child in _many(schema, keywords, (*_MAPS, *_DEFINITIONS)))


def _many(
    schema: dict[str, Any], keywords: Container[str], maps: Iterable[str]
) -> Iterator[tuple[str, Any]]:
    for keyword in _LISTS:
        if keyword in keywords and isinstance(schema.get(keyword), list):
            yield from ((keyword, child) for child in schema[keyword])
    for keyword in maps:
        if keyword in keywords and isinstance(schema.get(keyword), dict):
            yield from ((keyword, child) for child in schema[keyword].values())
