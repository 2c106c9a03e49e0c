"""Whether a text is a regular expression of JSON Schema, as validators compile it.

A syntax check only; nothing is matched, so a hostile pattern costs no more than its length.
`is_regex` takes what today's validators do. Two engines share that work: the first lookaround or
back reference hands the pattern over to one that is laxer. Older drafts also hold a pattern to ECMA
262 itself (`is_ecma_regex`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from .regex_dialects import Syntax

_MAX_REPEATS = 327_673  # of one character; validators refuse larger programs
_MAX_INTEGER = (1 << 64) - 1
_CONTROLS = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "e": "\x1b",
}  # fmt: skip
_BOUNDARIES = frozenset("bBAz")
_CLASS_ESCAPE_KINDS = frozenset("dDsSwWpPhH")
_PROPERTIES = frozenset(
    "L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po "  # noqa: SIM905
    "S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn".split()
)
_CODE_POINT = re.compile(r"\\[xuU]\{?([0-9A-Fa-f]+)")
_BRACED_BOUNDARY = re.compile(r"\\[bB]\{(?![\d,])")
_NUMBERED = re.compile(r"\\([1-9]\d*)")
_NAMED = re.compile(r"\\k<([^\W\d]\w*)>")


class _Content(Enum):
    """What a group holds so far, as far as it matters to what may be repeated."""

    NOTHING = 0
    LOOKAROUND = 1
    SOMETHING = 2


def is_regex(pattern: str) -> bool:
    """Whether a validator can compile the pattern."""
    return _Reader(pattern, Syntax.STRICT).read()


def is_ecma_regex(pattern: str) -> bool:
    """Whether the pattern is one of ECMA 262 (in Unicode mode) that a validator can compile."""
    return _Reader(pattern, Syntax.ECMA).read()


@dataclass(slots=True)
class _Reader:
    """Reads a pattern once from left to right."""

    pattern: str
    syntax: Syntax
    groups: list[tuple[str, _Content, bool]] = field(default_factory=list)
    """What opened each group that is still open, and `content` and `looks_back` outside of it."""
    content: _Content = _Content.NOTHING
    """What the innermost open group holds."""
    looks_back: bool = False
    names: set[str] = field(default_factory=set)
    named_references: set[str] = field(default_factory=set)
    num_captures: int = 0
    last_reference: int = 0
    has_bell: bool = False
    can_repeat: bool = False
    is_boundary: bool = False
    brace_is_text: bool = False
    """Whether a brace cannot repeat what is before it, being the first of something new."""

    def read(self) -> bool:
        position: int | None = 0
        while position is not None and position < len(self.pattern):
            position = self._step(position)
        is_complete = position is not None and not self.groups
        if self.has_bell and self.syntax is Syntax.STRICT:
            return False  # read by the stricter engine, then lost on the way to the other
        has_groups = self.named_references <= self.names
        return is_complete and has_groups and self.last_reference <= self.num_captures

    @property
    def _is_ecma(self) -> bool:
        return self.syntax is Syntax.ECMA

    def _step(self, position: int) -> int | None:
        """Return the end of what begins at `position`, None if it is malformed."""
        char = self.pattern[position]
        if char in "*+?{":
            return self._quantifier(position)
        if char == "(":
            return self._open(position)
        if char == ")":
            return self._close(position)
        end: int | None = position + 1
        can_repeat = char not in "|^$" if self._is_ecma else char != "|"
        self.is_boundary = char == "\\" and self.pattern[position + 1 : position + 2] in "bB"
        match char:
            case "[":
                end = self._class(position)
            case "\\":
                end = self._escape(position)
                can_repeat = not (self._is_ecma and self.is_boundary)
            case "]" | "}" if self._is_ecma:
                end = None
        self._add(_Content.SOMETHING)
        if char == "|":
            self.content = _Content.SOMETHING
        self.can_repeat = can_repeat
        self.brace_is_text = char == "|" and self.syntax is Syntax.LAX
        return end

    def _add(self, content: _Content) -> None:
        """Note that more stands in the innermost group."""
        if content is not _Content.NOTHING:
            is_first = self.content is _Content.NOTHING
            self.content = content if is_first else _Content.SOMETHING

    def _quantifier(self, position: int) -> int | None:
        found = self.syntax.quantifier.match(self.pattern, position)
        is_lax = self.syntax is Syntax.LAX
        is_brace = self.pattern[position] == "{"
        if is_lax and is_brace and (found is None or _exceeds(found, _MAX_INTEGER)):
            self._add(_Content.SOMETHING)
            self.can_repeat, self.brace_is_text = True, False
            return position + 1
        if found is None:
            return None
        is_text = self.brace_is_text and is_brace  # which may be repeated in turn
        if not (self.can_repeat or is_text):
            return None
        if not self._is_ecma and _exceeds(found, _MAX_REPEATS):
            return None
        low, high = _number(found["low"]), _number(found["high"])
        may_descend = is_lax and (is_text or not self.looks_back)
        if found["high"] and low > high and not may_descend:
            return None
        if self.is_boundary and self.looks_back and not _is_fixed(found):
            return None
        self.is_boundary = False
        # The stricter engine only checks braces with spaces; to the other they are text.
        is_text = is_text or " " in found.group()
        self.can_repeat, self.brace_is_text = is_text, not (is_text or self._is_ecma)
        return found.end()

    def _open(self, position: int) -> int | None:
        found = self.syntax.group.match(self.pattern, position)
        if found is None:
            return None
        text, name, flags = found.group(), found["name"], found["flags"]
        if self.syntax is Syntax.STRICT and text[-1] in "=!":
            self.syntax = Syntax.LAX
        if name is not None:
            if name in self.names and self.syntax is not Syntax.LAX:
                return None
            self.names.add(name)
        if flags is not None:
            letters = flags.replace("-", "")
            is_repeated = len(set(letters)) != len(letters) and self.syntax is not Syntax.LAX
            if not letters or is_repeated:
                return None
            if not found["scoped"]:
                self.can_repeat = self.brace_is_text = False
                return found.end() + 1 if self.pattern.startswith(")", found.end()) else None
        elif text == "(" and self.pattern.startswith("?", found.end()):
            return None
        self.num_captures += text == "(" or name is not None
        self.groups.append((text, self.content, self.looks_back))
        self.content, self.is_boundary = _Content.NOTHING, False
        if text[-1] in "=!":
            self.looks_back = text[2] == "<"
        self.can_repeat, self.brace_is_text = False, self.syntax is Syntax.LAX
        return found.end()

    def _close(self, position: int) -> int | None:
        if not self.groups:
            return None
        opening, before, self.looks_back = self.groups.pop()
        if opening[-1] in "=!":
            content = _Content.LOOKAROUND
        else:  # a group that only groups is what it holds
            content = self.content if opening[-1] == ":" else _Content.SOMETHING
        self.content, self.is_boundary = before, False
        self._add(content)
        self.can_repeat = content is _Content.SOMETHING or (
            self._is_ecma and opening[-1] not in "=!"
        )
        self.brace_is_text = False
        return position + 1

    def _escape(self, position: int) -> int | None:
        numbered = _NUMBERED.match(self.pattern, position)
        if numbered is not None:
            self.last_reference = max(self.last_reference, _number(numbered[1]))
            if self.syntax is Syntax.STRICT:
                self.syntax = Syntax.LAX
            return numbered.end()
        named = _NAMED.match(self.pattern, position)
        if named is not None and self.syntax is not Syntax.STRICT:
            if self._is_ecma:  # the group may follow
                self.named_references.add(named[1])
            elif named[1] not in self.names:
                return None
            return named.end()
        self.has_bell = self.has_bell or self.pattern.startswith("\\a", position)
        if _BRACED_BOUNDARY.match(self.pattern, position) and not self._is_ecma:
            return None
        return self._escape_end(position)

    def _class(self, position: int) -> int | None:
        """Return the end of the bracketed class that begins at `position`."""
        pattern = self.pattern
        position += 1
        if pattern.startswith("^", position):
            position += 1
        first = position
        while position < len(pattern):
            if pattern[position] == "]" and (position > first or self._is_ecma):
                return position + 1
            low, end = self._member(position)
            if end is not None and pattern.startswith("-", end):
                after = pattern[end + 1 : end + 2]
                if after not in ("]", ""):
                    high, end = self._member(end + 1)
                    if low is None or high is None or high < low:
                        return None
            if end is None:
                return None
            position = end
        return None

    def _member(self, position: int) -> tuple[str | None, int | None]:
        """Return a character of a class (None for a set of them) and its end, None if malformed."""
        if self.pattern[position] != "\\":
            return self.pattern[position], position + 1
        kind = self.pattern[position + 1 : position + 2]
        if kind in _BOUNDARIES and self.syntax is Syntax.STRICT:
            return None, None
        if kind == "B" and self._is_ecma:
            return None, None
        if kind == "k" and self.syntax is Syntax.LAX:
            return kind, position + 2
        end = self._escape_end(position)
        if end is None or kind in _CLASS_ESCAPE_KINDS:
            return None, end
        code = _CODE_POINT.match(self.pattern, position)
        return chr(int(code[1], 16)) if code else _CONTROLS.get(kind, kind), end

    def _escape_end(self, position: int) -> int | None:
        found = self.syntax.escape.match(self.pattern, position)
        if found is None:
            return None
        text = found.group()
        if text[1] in "pP" and not self._is_ecma:
            name = text[2:].strip("{} ").lstrip("^")
            if len(name) <= 2 and name not in _PROPERTIES:
                return None
        code = _CODE_POINT.match(text)
        if code is not None and not self._is_character(int(code[1], 16)):
            return None
        return found.end()

    def _is_character(self, code: int) -> bool:
        is_surrogate = 0xD800 <= code < 0xE000
        return code <= 0x10FFFF and (self._is_ecma or not is_surrogate)


def _exceeds(quantifier: re.Match[str], limit: int) -> bool:
    return max(_number(quantifier["low"]), _number(quantifier["high"])) > limit


def _is_fixed(quantifier: re.Match[str]) -> bool:
    return quantifier.group()[0] == "{" and "," not in quantifier.group()


def _number(digits: str | None) -> int:
    """Read digits; int() refuses thousands of them, and no count is that long."""
    significant = (digits or "").lstrip("0")
    return int(significant or 0) if len(significant) <= 20 else 10**20
