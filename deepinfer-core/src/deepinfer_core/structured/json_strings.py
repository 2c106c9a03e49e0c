"""Strings as JSON writes them, as grammars that backends are quick with.

INVARIANT: what may follow without end stands in one rule as runs of plain characters between
escapes. A rule for each character means the same and makes masks a thousand times as dear: behind
one character, nearly every token of the vocabulary would leave the rule.
"""

from __future__ import annotations

from deepinfer_core.structured.ebnf import (
    Ranges,
    Rules,
    char_class,
    complement,
    literal,
    make_ranges,
    minus,
    of_characters,
    repeat,
)
from deepinfer_core.structured.regex import Writer

MAX_CHAIN = 48
"""Characters that are counted one by one, with a rule for each count. In a string whose bounds are
above that, none can be escaped."""

_MUST_ESCAPE = make_ranges([(0, 0x1F), *of_characters('"\\')])
_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "\\": "\\"}
_HEX = "[0-9a-fA-F]"
_ESCAPE = (
    rf'"\\" (["\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}} | '
    rf'[dD] [89abAB] {_HEX}{{2}} "\\" "u" [dD] [c-fC-F] {_HEX}{{2}}))'
)
_PLAIN = char_class(minus(complement(()), _MUST_ESCAPE))


def write_character(ranges: Ranges) -> str:
    """One character out of some; each in one way."""
    plain, escaped = _parts(ranges)
    return _either([plain, *escaped] if plain else escaped)


def write_run(ranges: Ranges) -> str:
    """Any number of characters out of some; each in one way."""
    plain, escaped = _parts(ranges)
    return _run(plain, _either(escaped) if escaped else "")


JSON_WRITER = Writer(write_character, write_run)
"""Within a string, where an expression says which characters there are."""


class StringRules:
    """Whole strings, with their quotes, whose characters may be written in any way.

    Args:
        rules: where the rules go.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.any = rules.add("string", rf'"\"" {_run(_PLAIN, _ESCAPE)} "\""')
        """A rule for any string."""
        self._chains: dict[tuple[int, int | None], str] = {}
        self._escape: str | None = None

    def bounded(self, least: int, most: int | None) -> str:
        """A string of so many characters; None: without end."""
        if (least, most) == (0, None):
            return self.any
        if max(least, most or 0) > MAX_CHAIN:
            return rf'"\"" {repeat(_PLAIN, least, most)} "\""'
        return rf'"\"" {self._chain(least, most)}'

    def _chain(self, least: int, most: int | None) -> str:
        """The rest of a string with so many characters to come."""
        if self._escape is None:
            self._escape = self._rules.add("escape", _ESCAPE)
        if (least, most) not in self._chains:
            name = self._rules.reserve("rest")
            self._chains[least, most] = name
            bodies = [] if least else [r'"\""']
            if (least, most) == (0, None):
                bodies = [rf'{_run(_PLAIN, _ESCAPE)} "\""']
            elif most != 0:
                rest = self._chain(max(0, least - 1), None if most is None else most - 1)
                bodies += [f"{_PLAIN} {rest}", f"{self._escape} {rest}"]
            self._rules.define(name, " | ".join(bodies))
        return self._chains[least, most]


def _parts(ranges: Ranges) -> tuple[str, list[str]]:
    """A class of those that stand for themselves, and the texts of the others."""
    plain = minus(ranges, _MUST_ESCAPE)
    escaped = []
    for low, high in ranges:
        for code in range(low, min(high, 0x5C) + 1):
            character = chr(code)
            if character in _SHORT:
                escaped.append(literal(f"\\{_SHORT[character]}"))
            elif code < 0x20:
                escaped.append(literal(f"\\u{code:04x}"))
    return char_class(plain) if plain else "", escaped


def _run(plain: str, escaped: str) -> str:
    if not escaped:
        return f"{plain}*"
    return f"{plain}* (({escaped}) {plain}*)*" if plain else f"({escaped})*"


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"
