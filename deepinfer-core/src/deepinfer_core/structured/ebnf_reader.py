"""Reads EBNF grammars, for backends that have another notation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from deepinfer_core.structured.ebnf import Ranges, complement, make_ranges, of_characters

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?P<defines>\s*::=)?
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[(?:[^\]\\]|\\.)*\])
    |(?P<bounds>\{\s*[0-9]+\s*(?:,\s*[0-9]*\s*)?\})
    |(?P<sign>[|()*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "b": "\b", "0": "\0"}
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of some."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Several times; None: without end."""

    part: Part
    least: int
    most: int | None


Part: TypeAlias = Chars | Rule | Chain | Choice | Times


def read_ebnf(text: str) -> dict[str, Part]:
    """The rules of a grammar by name.

    Raises:
        ValueError: it is none, or is not of the plain kind.
    """
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise ValueError("there is no rule called root")
    for name, part in rules.items():
        for wanted in references(part):
            if wanted not in rules:
                raise ValueError(f"rule {name} needs {wanted}, which is not there")
    return rules


def references(part: Part) -> set[str]:
    """Names of the rules that a part needs itself."""
    match part:
        case Rule(name):
            return {name}
        case Chain(parts) | Choice(parts):
            return set().union(*map(references, parts))
        case Times(inner, _, _):
            return references(inner)
    return set()


class _Reader:
    """Recursive descent over the tokens of one grammar."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._index = 0
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                line = text.count("\n", 0, position) + 1
                raise ValueError(f"line {line}: cannot read {text[position : position + 20]!r}")
            position = found.end()
            if found["name"]:
                kind = "rule" if found["defines"] else "name"
                self._tokens.append((kind, found["name"]))
            elif found.lastgroup:
                self._tokens.append((found.lastgroup, found[found.lastgroup]))

    def rules(self) -> dict[str, Part]:
        found: dict[str, Part] = {}
        while self._index < len(self._tokens):
            kind, name = self._next()
            if kind != "rule":
                self._refuse(f"{name!r} stands where a rule begins")
            if name in found:
                self._refuse(f"rule {name} is there twice")
            found[name] = self._any()
        return found

    def _any(self) -> Part:
        parts = [self._all()]
        while self._peek() == ("sign", "|"):
            self._next()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _all(self) -> Part:
        parts: list[Part] = []
        while (token := self._peek()) is not None:
            if token[0] == "rule" or token in (("sign", "|"), ("sign", ")")):
                break
            parts.append(self._times(self._atom()))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def _times(self, part: Part) -> Part:
        while (token := self._peek()) is not None:
            kind, text = token
            if kind == "sign" and text in _SIGNS:
                least, most = _SIGNS[text]
            elif kind == "bounds":
                first, comma, last = text[1:-1].partition(",")
                least = int(first)
                most = (int(last) if last.strip() else None) if comma else least
            else:
                break
            self._next()
            part = Times(part, least, most)
        return part

    def _atom(self) -> Part:
        kind, text = self._next()
        if kind == "name":
            return Rule(text)
        if kind == "text":
            return Chain(tuple(Chars(of_characters(c)) for c, _ in _characters(text[1:-1])))
        if kind == "chars":
            return Chars(_ranges(text[1:-1]))
        if text == ".":
            return Chars(complement(()))
        if text != "(":
            self._refuse(f"{text!r} stands where something to match begins")
        part = self._any()
        if self._peek() != ("sign", ")"):
            self._refuse("a parenthesis is not closed")
        self._next()
        return part

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        self._index += 1
        return self._tokens[self._index - 1]

    def _refuse(self, what: str) -> NoReturn:
        rule = next((t for k, t in reversed(self._tokens[: self._index]) if k == "rule"), "root")
        raise ValueError(f"in rule {rule}: {what}")


def _characters(text: str) -> list[tuple[str, bool]]:
    """Characters, and whether each was escaped."""
    found = []
    for byte, short, long, escaped, plain in _ESCAPE.findall(text):
        code = byte or short or long
        if code:
            found.append((chr(int(code, 16)), True))
        else:
            found.append((_CONTROLS.get(escaped, escaped), True) if escaped else (plain, False))
    return found


def _ranges(text: str) -> Ranges:
    is_negated = text.startswith("^")
    characters = _characters(text[is_negated:])
    pairs, index = [], 0
    while index < len(characters):
        low = ord(characters[index][0])
        is_range = characters[index + 1 : index + 2] == [("-", False)]
        if is_range and index + 2 < len(characters):
            pairs.append((low, ord(characters[index + 2][0])))
            index += 3
        else:
            pairs.append((low, low))
            index += 1
    ranges = make_ranges(pairs)
    return complement(ranges) if is_negated else ranges
