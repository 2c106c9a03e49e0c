"""What sets one draft of JSON Schema apart from another, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..jsontext import dumps_compact

Check: TypeAlias = Callable[[Any, "Draft"], None]


class SchemaError(ValueError):
    """The value is no JSON Schema; the message says why."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The keywords of one draft, each with the check of its value, and how references work."""

    keywords: Mapping[str, Check]
    indexed: frozenset[str]
    """The keywords below which documents, their addresses and anchors are looked for."""
    documents: frozenset[str]
    """Addresses that always lead somewhere: the schemas that describe this draft."""
    has_booleans: bool = True
    """Whether `true` and `false` are schemas."""
    asserts_regex: bool = False
    """Whether patterns are checked wherever they stand, and not only where they are used."""
    ref_hides_siblings: bool = False
    """Whether all that stands beside a reference is ignored, an address too."""
    id_keyword: str = "$id"
    anchors: tuple[str, ...] = ()
    references: tuple[str, ...] = ("$ref",)

    def check(self, schema: Any) -> None:
        """Raise SchemaError if the value is no schema of this draft."""
        if self.has_booleans and isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            kinds = 'types "boolean", "object"' if self.has_booleans else 'type "object"'
            raise SchemaError(f"{dumps_compact(schema)} is not of {kinds}")
        for keyword, value in schema.items():
            check = self.keywords.get(keyword)
            if check is not None:
                check(value, self)
        if not self.has_booleans:
            _check_limits(schema)


def _check_limits(schema: Mapping[str, Any]) -> None:
    for limit in ("minimum", "maximum"):
        exclusive = f"exclusive{limit.capitalize()}"
        if exclusive in schema and limit not in schema:
            raise SchemaError(f'"{limit}" is a dependency of "{exclusive}"')


def is_uri_reference(text: str) -> bool:
    """Whether a text is a URI or a relative reference (RFC 3986, section 4.1)."""
    return _URI.match(text) is not None


def is_uri(text: str) -> bool:
    """Whether a text is a URI with a scheme."""
    found = _URI.match(text)
    return found is not None and found.group("scheme") is not None


_CHAR = r"(?:[A-Za-z0-9\-._~!$&'()*+,;={}]|%[0-9A-Fa-f]{{2}})"
_PATH_CHAR, _FIRST_CHAR = _CHAR.format(":@/"), _CHAR.format("@")
_AUTHORITY = (
    rf"//(?:{_CHAR.format(':')}*@)?(?:\[[0-9A-Fa-f:.vV]+\]|{_CHAR.format('')}*)(?::[0-9]*)?"
)
_URI = re.compile(
    rf"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):(?:{_AUTHORITY}(?=[/?#]|\Z))?{_PATH_CHAR}*"
    rf"|{_AUTHORITY}(?=[/?#]|\Z){_PATH_CHAR}*"
    rf"|(?:{_FIRST_CHAR}*(?:/{_PATH_CHAR}*)?))"
    rf"(?:\?(?:{_PATH_CHAR}|\?)*)?(?:#(?:{_PATH_CHAR}|\?)*)?\Z"
)
