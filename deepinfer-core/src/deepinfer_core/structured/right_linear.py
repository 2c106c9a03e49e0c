"""Small regular grammars with a rule for each place in them, each ending in another rule.

A matcher that keeps masks for each rule is a hundred times as quick with these: what follows a
token stays within the rules that it has masks of.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer_core.structured.ebnf import Ranges, Rules, char_class
from deepinfer_core.structured.ebnf_reader import Chain, Chars, Choice, Part, Rule, Times

MAX_PLACES = 64
"""Of characters in the grammar with its repetitions written out: each costs time to compile."""


class _TooLargeError(Exception):
    """The grammar has more places, or needs itself."""


def right_linear(rules: Mapping[str, Part]) -> str | None:
    """The text of the same grammar, or None if it is too large or needs itself."""
    places = _Places(rules)
    try:
        nullable, first, last = places.of(rules["root"], 0)
    except _TooLargeError:
        return None
    written = Rules()
    names: dict[tuple[frozenset[int], bool], str] = {}
    queue: list[tuple[str, frozenset[int], bool]] = []

    def rule(following: set[int], may_end: bool) -> str:
        key = frozenset(following), may_end
        if key not in names:
            names[key] = written.reserve("place")
            queue.append((names[key], *key))
        return names[key]

    written.root = rule(first, nullable)
    while queue:
        name, following, may_end = queue.pop()
        bodies = ['""'] if may_end else []
        for place in sorted(following):
            rest = rule(places.follow[place], place in last)
            bodies.append(f"{char_class(places.ranges[place])} {rest}")
        if not bodies:
            return None
        written.define(name, " | ".join(bodies))
    return written.text()


class _Places:
    """Which characters may begin, end, and follow each other (V. M. Glushkov, 1961)."""

    def __init__(self, rules: Mapping[str, Part]) -> None:
        self.ranges: list[Ranges] = []
        self.follow: list[set[int]] = []
        self._rules = rules

    def of(self, part: Part, depth: int) -> tuple[bool, set[int], set[int]]:
        """Whether a part may be empty, and where it begins and ends."""
        if depth > MAX_PLACES:
            raise _TooLargeError
        match part:
            case Chars(ranges):
                if len(self.ranges) == MAX_PLACES or not ranges:
                    raise _TooLargeError
                self.ranges.append(ranges)
                self.follow.append(set())
                place = len(self.ranges) - 1
                return False, {place}, {place}
            case Rule(name):
                return self.of(self._rules[name], depth + 1)
            case Choice(parts):
                found = [self.of(each, depth + 1) for each in parts]
                nullable = any(empty for empty, _, _ in found)
                return (
                    nullable,
                    set().union(*(first for _, first, _ in found)),
                    set().union(*(last for _, _, last in found)),
                )
            case Chain(parts):
                return self._chain([self.of(each, depth + 1) for each in parts])
            case Times(inner, least, most):
                return self._times(inner, least, most, depth + 1)

    def _chain(
        self, found: list[tuple[bool, set[int], set[int]]]
    ) -> tuple[bool, set[int], set[int]]:
        nullable, first, last = True, set[int](), set[int]()
        for empty, begins, ends in found:
            for place in last:
                self.follow[place] |= begins
            first = first | begins if nullable else first
            last = last | ends if empty else set(ends)
            nullable = nullable and empty
        return nullable, first, last

    def _times(
        self, inner: Part, least: int, most: int | None, depth: int
    ) -> tuple[bool, set[int], set[int]]:
        if most is None:
            needed = [self.of(inner, depth) for _ in range(least)]
            _, begins, ends = again = self.of(inner, depth)
            for place in ends:
                self.follow[place] |= begins
            return self._chain([*needed, (True, *again[1:])])
        if most > MAX_PLACES:
            raise _TooLargeError
        needed = [self.of(inner, depth) for _ in range(least)]
        # Behind one that is left out nothing follows, so that there is one way for each count.
        rest: tuple[bool, set[int], set[int]] = (True, set(), set())
        for _ in range(most - least):
            rest = (True, *self._chain([self.of(inner, depth), rest])[1:])
        return self._chain([*needed, rest])
