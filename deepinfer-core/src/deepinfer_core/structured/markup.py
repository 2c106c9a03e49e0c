"""Markup around values: a tree of texts, tokens, values and free text, as recipes give it.

{"all": [{"token": "<call>"}, {"text": "f("}, {"json_schema": {...}}, {"text": ")"}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.ebnf import (
    MAX_CODE_POINT,
    Rules,
    char_class,
    complement,
    literal,
    repeat,
)
from deepinfer_core.structured.json_schema import SchemaWriter
from deepinfer_core.structured.regex import PLAIN_WRITER, expression, parse_regex

FIELD = "structured.markup"


def markup_rules(tree: str, marks: Mapping[str, str], *, max_whitespace: int) -> str:
    """The grammar of a tree, given as JSON text.

    Args:
        marks: what stands for each token that may be named.

    Raises:
        GrammarError: a node is malformed or cannot be enforced; names its path.
    """
    if any(ord(character) > MAX_CODE_POINT for character in tree):
        _refuse("#", "private characters of plane 16 stand for tokens and cannot be written")
    rules = Rules()
    body = _MarkupWriter(rules, marks, max_whitespace).body(json.loads(tree), "#")
    if body is None:
        _refuse("#", "nothing is valid")
    rules.root = body
    return rules.text()


class _MarkupWriter:
    def __init__(self, rules: Rules, marks: Mapping[str, str], max_whitespace: int) -> None:
        self._rules, self._marks, self._max_whitespace = rules, marks, max_whitespace
        self._write: dict[str, Callable[[Any, str], str | None]] = {
            "text": self._text,
            "token": self._token,
            "free": self._free,
            "regex": self._regex,
            "json_schema": lambda schema, path: self._value(schema, path, SchemaWriter.root),
            "no_string": lambda schema, path: self._value(
                schema, path, SchemaWriter.without_strings
            ),
            "string": lambda schema, path: self._value(schema, path, SchemaWriter.strings),
            "all": self._all,
            "any": self._any,
            "times": self._times,
        }

    def body(self, node: Any, path: str) -> str | None:
        """What a node stands for; None: nothing is valid."""
        if not isinstance(node, dict) or len(node) != 1:
            _refuse(path, f"a node is an object with one of {', '.join(self._write)}")
        ((kind, value),) = node.items()
        if kind not in self._write:
            _refuse(path, f"{kind!r} is no node; there are {', '.join(self._write)}")
        return self._write[kind](value, f"{path}/{kind}")

    def _text(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            _refuse(path, "needs text")
        return literal(value)

    def _token(self, value: Any, path: str) -> str:
        mark = self._marks.get(value) if isinstance(value, str) else None
        if mark is None:
            _refuse(path, f"{value!r} is no token of this vocabulary that can be named")
        return literal(mark)

    def _free(self, value: Any, path: str) -> str:
        if value is not True:
            _refuse(path, "needs true")
        return repeat(char_class(complement(())), 0, None)

    def _regex(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            _refuse(path, "needs text")
        field = f"{FIELD}: {path}"
        node = parse_regex(value, field=field)
        return f"({expression(node, PLAIN_WRITER, is_search=False, field=field)})"

    def _value(
        self, schema: Any, path: str, write: Callable[[SchemaWriter], str | None]
    ) -> str | None:
        writer = SchemaWriter(schema, self._rules, max_whitespace=self._max_whitespace)
        try:
            body = write(writer)
        except GrammarError as error:
            raise GrammarError(f"{FIELD}: {path}: {error}", field=FIELD) from error
        return body and self._rules.add("part", body)

    def _all(self, parts: Any, path: str) -> str | None:
        bodies = [self.body(part, f"{path}/{i}") for i, part in enumerate(_listed(parts, path))]
        return None if None in bodies else f"({' '.join(filter(None, bodies))})"

    def _any(self, parts: Any, path: str) -> str | None:
        bodies = [self.body(part, f"{path}/{i}") for i, part in enumerate(_listed(parts, path))]
        return f"({' | '.join(filter(None, bodies))})" if any(bodies) else None

    def _times(self, value: Any, path: str) -> str | None:
        """`[node, least, most]`, null for no end."""
        match value:
            case [node, int(least), int(most) | (None as most)] if 0 <= least <= (most or least):
                body = self.body(node, f"{path}/0")
                if body is None:
                    return None if least else '""'
                return repeat(body, least, most)
        _refuse(path, "needs a node, the fewest times and the most, or null for no end")


def _listed(parts: Any, path: str) -> list[Any]:
    if not isinstance(parts, list) or not parts:
        _refuse(path, "needs a list of nodes")
    return parts


def _refuse(path: str, what: str) -> NoReturn:
    raise GrammarError(f"{FIELD}: {path}: {what}", field=FIELD)
