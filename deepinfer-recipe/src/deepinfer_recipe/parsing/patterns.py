"""Text patterns that may arrive in any chunking, and their incremental matching.

Knows nothing of what a match means. A character comes from a text chunk, from ordinary tokens or
from a special token: a marker that is a special token is only matched by that token or by text
whose tokens are unknown, and never by ordinary tokens that happen to spell it.
"""

from __future__ import annotations

import re
from enum import Enum


class Origin(Enum):
    """Where a piece of output comes from."""

    TEXT = "text"
    """Text whose tokens are unknown; it may hold special tokens."""
    PLAIN = "plain"
    """Ordinary tokens."""
    SPECIAL = "special"
    """One token of the added vocabulary."""


class Pattern:
    """A string to find, part of which may be a special token.

    With `takes_newlines`, a match includes all newlines directly in front. A `is_leading_newline`
    pattern matches one newline as the first character of a state.
    """

    __slots__ = ("_failure", "_special", "_text", "is_leading_newline", "takes_newlines")

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
        self._text = before + special + after
        self._special = range(len(before), len(before) + len(special))
        self.takes_newlines = takes_newlines
        self.is_leading_newline = is_leading_newline
        self._failure = _failure_links(self._text)

    @property
    def text(self) -> str:
        """The whole string to find."""
        return self._text

    def __len__(self) -> int:
        return len(self._text)

    def advance(self, length: int, char: str, origin: Origin) -> int:
        """Return how much of the string is matched after one more character."""
        while length and not self._accepts(length, char, origin):
            length = self._failure[length - 1]
        return length + 1 if self._accepts(length, char, origin) else 0

    def first_char(self, origin: Origin) -> str:
        """Return the characters of this origin that can begin a match ("" for none)."""
        first = self._text[0] if self._accepts(0, self._text[0], origin) else ""
        return first + ("\n" if self.takes_newlines and origin is not Origin.SPECIAL else "")

    def _accepts(self, length: int, char: str, origin: Origin) -> bool:
        if self._text[length] != char:
            return False
        if origin is Origin.TEXT:
            return True
        return (origin is Origin.SPECIAL) == (length in self._special)


class PatternSet:
    """The patterns of one parser state, in order of precedence."""

    __slots__ = ("_skip", "patterns")

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self.patterns = patterns
        self._skip = {}
        for origin in Origin:
            starts = {char for pattern in patterns for char in pattern.first_char(origin)}
            escaped = "".join(map(re.escape, sorted(starts)))
            self._skip[origin] = re.compile(f"[{escaped}]") if escaped else None

    def next_candidate(self, text: str, position: int, origin: Origin) -> int:
        """Return where a match could begin at or after `position`, or the length of the text."""
        starts = self._skip[origin]
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

    def feed(self, char: str, origin: Origin) -> tuple[int, int] | None:
        """Take one character; return (pattern index, length of the match) when one completes."""
        longest = 0
        for index, pattern in enumerate(self._patterns):
            if pattern.is_leading_newline:
                if self._is_first and char == "\n" and origin is not Origin.SPECIAL:
                    return index, 1
                continue
            length = self._advance(index, pattern, char, origin)
            if self._lengths[index] == len(pattern):
                return index, length
            longest = max(longest, length)
        self._is_first = False
        self.num_held = longest
        return None

    def _advance(self, index: int, pattern: Pattern, char: str, origin: Origin) -> int:
        """Advance one pattern; return the length of its match so far, newlines included."""
        before = self._lengths[index]
        if not pattern.takes_newlines:
            self._lengths[index] = pattern.advance(before, char, origin)
            return self._lengths[index]
        if before == 0 and char == "\n" and origin is not Origin.SPECIAL:
            self._newlines[index] += 1  # even where the string itself begins with a newline
            return self._newlines[index]
        length = pattern.advance(before, char, origin)
        self._lengths[index] = length
        if length != before + 1:
            self._newlines[index] = 0  # the character of a mismatch is not counted either
        return length + self._newlines[index]


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
