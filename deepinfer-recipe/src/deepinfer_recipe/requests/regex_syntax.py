"""Whether a text is a regular expression of JSON Schema, as validators compile it.

A syntax check only; nothing is matched, so a hostile pattern costs no more than its length.
`is_regex` takes what today's validators do: ECMA 262 and some more. Older drafts also hold a
pattern to ECMA 262 itself (`is_ecma_regex`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BRACES = r"\{[ ]*(?P<low>\d+)[ ]*(?:(?P<comma>,)[ ]*(?P<high>\d*)[ ]*)?\}"
_QUANTIFIER = re.compile(rf"(?:[*+?]|{_BRACES})(?:\?\+?|\+)?")
_ECMA_QUANTIFIER = re.compile(r"(?:[*+?]|\{(?P<low>\d+)(?:(?P<comma>,)(?P<high>\d*))?\})\??")
_ESCAPE = re.compile(
    r"""\\(?:
        [dDsSwWbBAztnrfv]
      | c[A-Za-z]
      | x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]{1,8}\})
      | u(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,8}\})
      | U(?:[0-9A-Fa-f]{8}|\{[0-9A-Fa-f]{1,8}\})
      | [pP](?:[A-Z]|\{[ ]*\^?[A-Za-z][A-Za-z_]*(?:=[A-Za-z_]+)?[ ]*\})
      | [\x00-/:-@\[-`{-\x7f]
    )""",
    re.VERBOSE,
)
_NOT_ECMA = re.compile(r"\\(?:[AzU]|[pP](?:[A-Z]|\{[ ^])|x\{)")
_CODE_POINT = re.compile(r"\\[xuU]\{?([0-9A-Fa-f]+)")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_MAX_REPEATS = 999_999  # validators refuse what compiles to too large a program
_BOUNDARIES = frozenset("bBAz")
_CLASS_ESCAPE_KINDS = frozenset("dDsSwWpP")
_PROPERTIES = frozenset(
    "L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po "  # noqa: SIM905
    "S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn".split()
)
_GROUP = re.compile(
    r"\((?:\?(?:[:=!]|<=|<!|P?<(?P<name>[^\W\d]\w*)>"
    r"|(?P<flags>[imsux]*(?:-[imsux]+)?)(?P<scoped>:?)))?"
)
_REFERENCE = re.compile(r"\\([1-9]\d*)")


def is_regex(pattern: str) -> bool:
    """Whether a validator can compile the pattern."""
    return _Reader(pattern, is_ecma=False).read()


def is_ecma_regex(pattern: str) -> bool:
    """Whether the pattern is one of ECMA 262 (in Unicode mode) that a validator can compile."""
    return _Reader(pattern, is_ecma=True).read() and is_regex(pattern)


@dataclass(slots=True)
class _Reader:
    """Reads a pattern once from left to right."""

    pattern: str
    is_ecma: bool
    groups: list[str] = field(default_factory=list)
    """What opened each group that is still open."""
    names: set[str] = field(default_factory=set)
    num_captures: int = 0
    can_repeat: bool = False
    was_repeated: bool = False

    def read(self) -> bool:
        position: int | None = 0
        while position is not None and position < len(self.pattern):
            position = self._step(position)
        return position is not None and not self.groups

    def _step(self, position: int) -> int | None:
        """Return the end of what begins at `position`, None if it is malformed."""
        char = self.pattern[position]
        if char in "*+?{":
            return self._quantifier(position)
        if char == ")":
            return self._close(position)
        end: int | None = position + 1
        can_repeat = char not in "|^$" if self.is_ecma else char != "|"
        match char:
            case "(":
                end, can_repeat = self._open(position), False
            case "[":
                end = self._class(position)
            case "\\":
                end = self._escape(position)
                can_repeat = (
                    not self.is_ecma or self.pattern[position + 1 : position + 2] not in "bB"
                )
            case "]" | "}" if self.is_ecma:
                end = None
        self.can_repeat, self.was_repeated = can_repeat, False
        return end

    def _quantifier(self, position: int) -> int | None:
        found = (_ECMA_QUANTIFIER if self.is_ecma else _QUANTIFIER).match(self.pattern, position)
        if found is None:
            return None
        # A brace behind a repetition is text, which may be repeated in turn.
        is_text = self.was_repeated and found.group()[0] == "{" and not self.is_ecma
        if not (self.can_repeat or is_text):
            return None
        low, high = (_number(found.group(name)) for name in ("low", "high"))
        if max(low, high) > _MAX_REPEATS or (found.group("high") and low > high):
            return None
        self.can_repeat, self.was_repeated = is_text, True
        return found.end()

    def _open(self, position: int) -> int | None:
        found = _GROUP.match(self.pattern, position)
        if found is None:
            return None
        text, name, flags = found.group(), found.group("name"), found.group("flags")
        if name is not None:
            if name in self.names or (self.is_ecma and text[2] == "P"):
                return None
            self.names.add(name)
        if flags is not None:
            letters = flags.replace("-", "")
            if not letters or len(set(letters)) != len(letters):
                return None
            if not found.group("scoped"):
                is_closed = self.pattern.startswith(")", found.end())
                return found.end() + 1 if is_closed and not self.is_ecma else None
        elif text == "(" and self.pattern.startswith("?", found.end()):
            return None
        self.num_captures += text == "(" or name is not None
        self.groups.append(text)
        return found.end()

    def _close(self, position: int) -> int | None:
        if not self.groups:
            return None
        opening = self.groups.pop()
        is_lookaround = opening[-1] in "=!"
        is_empty = opening == "(?:" and self.pattern.startswith("(?:", position - 3)
        self.can_repeat, self.was_repeated = not (is_lookaround or is_empty), False
        return position + 1

    def _escape(self, position: int) -> int | None:
        reference = _REFERENCE.match(self.pattern, position)
        if reference is not None:
            is_group = _number(reference.group(1)) <= self.num_captures
            return reference.end() if is_group else None
        if self.is_ecma and _NOT_ECMA.match(self.pattern, position):
            return None
        return _escape_end(self.pattern, position)

    def _class(self, position: int) -> int | None:
        """Return the end of the bracketed class that begins at `position`."""
        pattern = self.pattern
        position += 1
        if pattern.startswith("^", position):
            position += 1
        first = position
        while position < len(pattern):
            if pattern[position] == "]" and (position > first or self.is_ecma):
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
        if kind in _BOUNDARIES or (self.is_ecma and _NOT_ECMA.match(self.pattern, position)):
            return None, None
        end = _escape_end(self.pattern, position)
        if end is None or kind in _CLASS_ESCAPE_KINDS:
            return None, end
        code = _CODE_POINT.match(self.pattern, position)
        return chr(int(code.group(1), 16)) if code else _CONTROLS.get(kind, kind), end


def _escape_end(pattern: str, position: int) -> int | None:
    found = _ESCAPE.match(pattern, position)
    if found is None:
        return None
    text = found.group()
    if text[1] in "pP":
        name = text[2:].strip("{} ").lstrip("^")
        if len(name) <= 2 and name not in _PROPERTIES:
            return None
    code = _CODE_POINT.match(text)
    if code is not None and not _is_character(int(code.group(1), 16)):
        return None
    return found.end()


def _number(digits: str | None) -> int:
    """Read digits; int() refuses thousands of them, and no count is that long."""
    significant = (digits or "").lstrip("0")
    return int(significant or 0) if len(significant) < 10 else 10**9


def _is_character(code: int) -> bool:
    return code < 0xD800 or 0xE000 <= code <= 0x10FFFF
