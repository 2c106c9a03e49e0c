"""JSON schemas as grammars of the JSON texts that are valid.

The texts have one form: keys in the order of the schema, those that it only allows behind those
that it declares, whitespace bounded, each value written once. So what is produced is always valid;
what is valid can be produced unless it is written otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.ebnf import (
    Rules,
    char_class,
    complement,
    literal,
    of_characters,
    repeat,
)
from deepinfer_core.structured.formats import FORMATS
from deepinfer_core.structured.json_strings import (
    JSON_WRITER,
    StringRules,
    write_character,
    write_run,
)
from deepinfer_core.structured.json_values import FIELD, canonical, kind_of, parse, refuse
from deepinfer_core.structured.numbers import integer_expression, number_expression
from deepinfer_core.structured.objects import ObjectWriter
from deepinfer_core.structured.regex import PLAIN_WRITER, Writer, expression, parse_regex
from deepinfer_core.structured.schema_keywords import Schema, Shape
from deepinfer_core.structured.shapes import ShapeReader

MAX_RULES = 20_000
MAX_COUNT = 20_000
"""Of characters or items, in a bound of a schema."""


def schema_rules(schema: str, *, max_whitespace: int) -> str:
    """The grammar of a schema, given as JSON text.

    Raises:
        GrammarError: the schema is malformed or cannot be enforced; names the JSON path.
    """
    rules = Rules()
    rules.root = SchemaWriter(parse(schema), rules, max_whitespace=max_whitespace).root()
    return rules.text()


class SchemaWriter:
    """Writes the rules of one schema, one for each part of it that is different.

    Args:
        rules: where they go.
        prefix: of their names.
    """

    def __init__(self, schema: Schema, rules: Rules, *, max_whitespace: int) -> None:
        self._schema = schema
        self._reader = ShapeReader(schema)
        self._rules = rules
        self._names: dict[str, str | None] = {}
        space = repeat("[ \\n\\t\\r]", 0, max_whitespace)
        self._space = rules.add("space", space)
        self._strings = StringRules(rules)

    def root(self) -> str:
        """The rule of the whole schema.

        Raises:
            GrammarError: as `schema_rules`.
        """
        try:
            name = self.rule(self._schema, "#")
        except RecursionError:
            raise GrammarError(f"{FIELD}: is nested too deeply", field=FIELD) from None
        if name is None:
            refuse("#", "nothing is valid")
        return name

    def without_strings(self) -> str | None:
        """What is valid of the whole schema and is no string; None: nothing."""
        bodies = []
        for shape in self._reader.shapes(self._schema, "#"):
            rest = replace(shape, types=shape.types - {"string"})
            if shape.values is not None:
                others = [v for v in shape.values if kind_of(parse(v)) != "string"]
                rest = replace(rest, values=tuple(others))
            if rest.types and rest.values != ():
                bodies += self._bodies(rest, "#")
        return " | ".join(dict.fromkeys(bodies)) or None

    def strings(self) -> str | None:
        """The strings of the whole schema, as they are, without quotes; None: there are none."""
        bodies = []
        for shape in self._reader.shapes(self._schema, "#"):
            if shape.values is not None:
                values = [parse(value) for value in shape.values]
                bodies += [literal(value) for value in values if isinstance(value, str)]
            elif "string" in shape.types:
                bodies.append(self._raw(shape, "#"))
        return " | ".join(dict.fromkeys(bodies)) or None

    def rule(self, schema: Schema, path: str) -> str | None:
        """The rule of a part of the schema; None: nothing is valid."""
        key = canonical(schema)
        if key in self._names:
            return self._names[key]
        shapes = self._reader.shapes(schema, path)
        if not shapes:
            self._names[key] = None
            return None
        if len(self._names) > MAX_RULES:
            refuse(path, f"the schema has more than {MAX_RULES} parts")
        name = self._rules.reserve("value")
        self._names[key] = name
        bodies = [body for shape in shapes for body in self._bodies(shape, path)]
        self._rules.define(name, " | ".join(dict.fromkeys(bodies)))
        return name

    def _bodies(self, shape: Shape, path: str) -> list[str]:
        if shape.values is not None:
            return [literal(text) for text in shape.values]
        bodies = []
        if "null" in shape.types:
            bodies.append('"null"')
        if "boolean" in shape.types:
            bodies.append('"true" | "false"')
        if "number" in shape.types:
            bodies.append(self._number(shape, path))
        if "string" in shape.types:
            bodies.append(self._string(shape, path))
        if "array" in shape.types:
            bodies.append(self._array(shape, path))
        if "object" in shape.types:
            bodies.append(self._object(shape, path))
        return bodies

    def _number(self, shape: Shape, path: str) -> str:
        write = integer_expression if shape.is_whole else number_expression
        try:
            written = write(shape.interval)
        except ValueError as error:
            refuse(path, str(error))
        assert written is not None, "an empty interval leaves no number"
        return written

    def _string(self, shape: Shape, path: str) -> str:
        inside = self._limited(shape, path, JSON_WRITER)
        if inside is not None:
            return f'"\\"" {inside} "\\""'
        return self._strings.bounded(*_bounded(shape.min_length, shape.max_length, path))

    def _raw(self, shape: Shape, path: str) -> str:
        """A string without quotes and escapes."""
        inside = self._limited(shape, path, PLAIN_WRITER)
        if inside is not None:
            return inside
        least, most = _bounded(shape.min_length, shape.max_length, path)
        return repeat(char_class(complement(())), least, most)

    def _limited(self, shape: Shape, path: str, write: Writer) -> str | None:
        """Characters that a pattern or a format asks for; None: there is none."""
        limits = [*shape.patterns, *shape.formats]
        is_bounded = (shape.min_length, shape.max_length) != (0, None)
        if len(limits) + is_bounded > 1:
            refuse(
                path,
                "pattern, format and lengths cannot be held together; write them as one pattern",
            )
        if not limits:
            return None
        if shape.formats and shape.formats[0] not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            refuse(
                f"{path}/format",
                f"{limits[0]!r} cannot be enforced; leave it out or use a pattern; known: {known}",
            )
        pattern = FORMATS[shape.formats[0]] if shape.formats else shape.patterns[0]
        field = f"{FIELD}: {path}/pattern"
        node = parse_regex(pattern, field=field)
        return f"({expression(node, write, is_search=True, field=field)})"

    def _array(self, shape: Shape, path: str) -> str:
        least, most = _bounded(shape.min_items, shape.max_items, path)
        prefix = [self.rule(part, f"{path}/prefixItems/{i}") for i, part in enumerate(shape.prefix)]
        item = None if most == 0 else self.rule(shape.items, f"{path}/items")
        space, num_prefix = self._space, len(prefix)
        if most is not None:
            prefix = prefix[:most]
        more = None if most is None else most - num_prefix
        rest = ""
        if item is not None and more != 0:
            needed = (
                max(0, least - max(num_prefix, 1)) if not prefix else max(0, least - num_prefix)
            )
            tail = more if more is None or prefix else more - 1
            rest = repeat(f'"," {space} {item} {space}', needed, tail)
        if not prefix:
            if item is None or more == 0:
                return f'"[" {space} "]"'
            inner = f"{item} {space} {rest}"
            optional = "" if least else "?"
            return f'"[" {space} ({inner}){optional} "]"'
        body = rest
        for index in range(len(prefix) - 1, -1, -1):
            comma = f'"," {space} ' if index else ""
            body = f"{comma}{prefix[index]} {space} {body}".rstrip()
            if index >= least:
                body = f"({body})?"
        return f'"[" {space} {body} "]"'

    def _object(self, shape: Shape, path: str) -> str:
        declared = dict(shape.properties)
        names = [*declared, *(name for name in shape.required if name not in declared)]
        pairs: list[tuple[str, bool]] = []
        for name in names:
            schema = declared.get(name, shape.additional)
            rule = self.rule(schema, f"{path}/properties/{name}")
            if rule is not None:
                key = literal(canonical(name))
                pair = f'{key} {self._space} ":" {self._space} {rule} {self._space}'
                pairs.append((pair, name in shape.required))
        more = self._additional(shape, names, path)
        return ObjectWriter(self._rules, self._space, pairs, more).body(
            shape.min_properties, shape.max_properties, path
        )

    def _additional(self, shape: Shape, names: list[str], path: str) -> str | None:
        """A pair whose key is not declared; None: there is none."""
        rule = self.rule(shape.additional, f"{path}/additionalProperties")
        if rule is None:
            return None
        key = self._strings.any
        if names:
            key = f'"\\"" {self._other_than(names)} "\\""'
        return f'{key} {self._space} ":" {self._space} {rule} {self._space}'

    def _other_than(self, names: list[str]) -> str:
        """The inside of a string that is none of the names."""
        tree: dict[str, Any] = {}
        for name in names:
            node = tree
            for character in name:
                node = node.setdefault(character, {})
            node[""] = {}
        return self._branch(tree)

    def _branch(self, tree: dict[str, Any]) -> str:
        anything = write_run(complement(()))
        children = {character: node for character, node in tree.items() if character}
        others = write_character(complement(of_characters(children)))
        parts = [] if "" in tree else ['""']
        parts.append(f"{others} {anything}")
        for character, node in children.items():
            parts.append(f"{write_character(of_characters(character))} {self._branch(node)}")
        # A rule for each character, since backends bound how deep one is nested.
        return self._rules.add("key", " | ".join(parts))


def _bounded(least: int, most: int | None, path: str) -> tuple[int, int | None]:
    if max(least, most or 0) > MAX_COUNT:
        refuse(path, f"a bound above {MAX_COUNT} is too much for a grammar; leave it out")
    return least, most
