"""Text of EBNF grammars: literals, classes of characters, rules by name.

The notation is llama.cpp's GBNF. Characters are code points; surrogates are none.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Code points, both ends included, ascending and apart."""

MAX_CODE_POINT = 0xFFFFF
"""Above it are private characters, which stand for tokens (`marks.py`): no class has them."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def make_ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, overlapping or not, put in order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All other code points, up to `MAX_CODE_POINT`."""
    gaps, start = [], 0
    for low, high in (*ranges, (0xD800, 0xDFFF)):
        gaps.append((low, high))
    found = []
    for low, high in make_ranges(gaps):
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        found.append((start, MAX_CODE_POINT))
    return tuple(found)


def minus(ranges: Ranges, others: Ranges) -> Ranges:
    """Those that are not among the others."""
    return complement(make_ranges((*complement(ranges), *others)))


def of_characters(characters: Iterable[str]) -> Ranges:
    return make_ranges((ord(c), ord(c)) for c in characters)


def literal(text: str) -> str:
    """A text, as it is."""
    return f'"{"".join(map(_escaped, text))}"'


def char_class(ranges: Ranges) -> str:
    """One character out of the ranges, of which there is at least one."""
    parts = []
    for low, high in ranges:
        parts.append(_escaped(chr(low)))
        if high > low:
            parts.append(f"-{_escaped(chr(high))}")
    return f"[{''.join(parts)}]"


def repeat(item: str, least: int, most: int | None) -> str:
    """So many of an item in a row; None: without end."""
    if most == 0:
        return '""'
    if (least, most) == (1, 1):
        return item
    is_class = item.startswith("[") and item.endswith("]") and item.count("[") == 1
    group = item if is_class else f"({item})"
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return f"{group}{short}"
    return f"{group}{{{least},{'' if most is None else most}}}"


class Rules:
    """A grammar in the making.

    Args:
        root: what the whole text is; may be set later.
    """

    def __init__(self, root: str = "") -> None:
        self.root = root
        self._bodies: dict[str, str] = {}

    def reserve(self, hint: str) -> str:
        """A name whose rule follows with `define`."""
        name = f"{hint}_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def add(self, hint: str, body: str) -> str:
        """A new rule; its name."""
        name = self.reserve(hint)
        self.define(name, body)
        return name

    def text(self) -> str:
        lines = [f"root ::= {self.root}"]
        lines += [f"{name} ::= {body}" for name, body in self._bodies.items()]
        return "\n".join(lines) + "\n"


def _escaped(character: str) -> str:
    if character in _PLAIN:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
