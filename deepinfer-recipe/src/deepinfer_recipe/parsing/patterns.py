"""Text patterns that may arrive in any chunking, and their incremental matching.

Knows nothing of what a match means. A character comes from a text chunk, from ordinary tokens or
from a special token: a marker that is a special token is only matched by that token or by text
whose tokens are unknown, and never by ordinary tokens that happen to spell it.
"""

from __future__ import annotations

import re
from enum import Enum


class Origin(Enum):
    """Where a piece of output comes from. The value is an index into tables of this module."""

    TEXT = 0
    """Text whose tokens are unknown; it may hold special tokens."""
    PLAIN = 1
    """Ordinary tokens."""
    SPECIAL = 2
    """One token of the added vocabulary."""


_NO_CHAR = "\ud800"  # stands where no character of an origin matches; no output holds it


class Pattern:
    """A string to find, part of which may be a special token.

    With `takes_newlines`, a match includes all newlines directly in front. A `is_leading_newline`
    pattern matches one newline as the first character of a state.
    """

    __slots__ = ("by_origin", "failure", "is_leading_newline", "takes_newlines", "text")

    def __init__(
        self,
        text: str,
        special: str = "",
        *,
        takes_newlines: bool = False,
        is_leading_newline: bool = False,
    ) -> None:
        """Build from a text with an optional `{}` where the special token stands."""
        before, _, after = text.partition("{}") if special else (text, "", "")
        self.text = before + special + after
        """The whole string to find."""
        ordinary = before + _NO_CHAR * len(special) + after
        marker = _NO_CHAR * len(before) + special + _NO_CHAR * len(after)
        self.by_origin = (self.text, ordinary, marker)
        """The string as the characters of each origin can match it."""
        self.failure = _failure_links(self.text)
        self.takes_newlines = takes_newlines
        self.is_leading_newline = is_leading_newline

    def __len__(self) -> int:
        return len(self.text)

    def first_chars(self, origin: int) -> str:
        """Return the characters of this origin that can begin a match."""
        first = self.by_origin[origin][0].replace(_NO_CHAR, "")
        return first + ("\n" if self.takes_newlines and origin != Origin.SPECIAL.value else "")


class PatternSet:
    """The patterns of one parser state, in order of precedence."""

    __slots__ = ("_starts", "patterns")

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self.patterns = patterns
        self._starts: list[re.Pattern[str] | None] = []
        for origin in range(len(Origin)):
            starts = {char for pattern in patterns for char in pattern.first_chars(origin)}
            escaped = "".join(map(re.escape, sorted(starts)))
            self._starts.append(re.compile(f"[{escaped}]") if escaped else None)

    def next_candidate(self, text: str, position: int, origin: int) -> int:
        """Return where a match could begin at or after `position`, or the length of the text."""
        starts = self._starts[origin]
        found = starts.search(text, position) if starts is not None else None
        return found.start() if found is not None else len(text)


class Matcher:
    """Matches all patterns of a set at once, one character after the other."""

    __slots__ = ("_is_first", "_lengths", "_newlines", "_patterns", "num_held")

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns.patterns
        self._lengths = [0] * len(self._patterns)
        self._newlines = [0] * len(self._patterns)
        self._is_first = True
        self.num_held = 0
        """Characters at the end of what was fed that may belong to a match."""

    def skip(self) -> None:
        """Note that characters which begin no match went by."""
        self._is_first = False

    def feed(self, char: str, origin: int) -> tuple[int, int] | None:
        """Take one character; return (pattern index, length of the match) when one completes."""
        longest = 0
        is_newline = char == "\n" and origin != _SPECIAL
        for index, pattern in enumerate(self._patterns):
            length = self._lengths[index]
            if length == 0 and is_newline:
                if pattern.is_leading_newline and self._is_first:
                    return index, 1
                if pattern.takes_newlines:  # even where the string itself begins with a newline
                    self._newlines[index] += 1
                    longest = max(longest, self._newlines[index])
                    continue
            if pattern.is_leading_newline:
                continue
            text = pattern.by_origin[origin]
            if text[length] == char:
                length += 1
            else:
                self._newlines[index] = 0  # the character of a mismatch is not counted either
                while length and text[length] != char:
                    length = pattern.failure[length - 1]
                length += text[length] == char
            self._lengths[index] = length
            held = length + self._newlines[index]
            if length == len(text):
                return index, held
            longest = max(longest, held if length else 0)
        self._is_first = False
        self.num_held = longest
        return None


_SPECIAL = Origin.SPECIAL.value


def _failure_links(text: str) -> list[int]:
    """Return, per prefix, the length of its longest proper border (Knuth, Morris and Pratt)."""
    links = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = links[length - 1]
        if text[index] == text[length]:
            length += 1
        links[index] = length
    return links
