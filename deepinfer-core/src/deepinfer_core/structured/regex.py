"""Regular expressions (ECMAScript) as grammars. What has no grammar is refused, with its place.

Owns the parser. Knows of JSON only that its strings write some characters otherwise (`Writer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.ebnf import (
    Ranges,
    Rules,
    char_class,
    complement,
    make_ranges,
    of_characters,
    repeat,
)

MAX_SIZE = 20_000
"""Characters that an expression stands for when repetitions are written out, at most."""
MAX_DEPTH = 100

DIGITS: Ranges = ((0x30, 0x39),)
WORD = make_ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACES = make_ranges(
    [
        *of_characters("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
        (0x2000, 0x200A),
    ]
)
ANY_BUT_NEWLINES = complement(of_characters("\n\r\u2028\u2029"))
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes characters out of some as expressions of a grammar."""

    one: Callable[[Ranges], str]
    run: Callable[[Ranges], str]
    """Any number of them."""


PLAIN_WRITER = Writer(char_class, lambda ranges: f"{char_class(ranges)}*")


@dataclass(frozen=True, slots=True)
class Characters:
    """One of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Several times; None: without end."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The beginning or the end of the text."""

    is_start: bool


Node: TypeAlias = Characters | Sequence | Choice | Repeat | Anchor


def regex_rules(pattern: str, *, field: str) -> str:
    """The grammar of the texts that an expression matches as a whole.

    Raises:
        GrammarError: it is malformed, or of a kind that has no grammar.
    """
    node = parse_regex(pattern, field=field)
    return Rules(expression(node, PLAIN_WRITER, is_search=False, field=field)).text()


def expression(node: Node, write: Writer, *, is_search: bool, field: str) -> str:
    """A parsed expression as the body of a rule.

    Args:
        is_search: it may match anywhere in the text, as `pattern` of JSON schemas does.

    Raises:
        GrammarError: an anchor stands where it has no grammar.
    """
    anything = write.run(complement(()))
    written = []
    for part in _alternatives(node):
        parts = list(part.parts) if isinstance(part, Sequence) else [part]
        starts = bool(parts) and parts[0] == Anchor(True)
        ends = bool(parts) and parts[-1] == Anchor(False)
        inner = parts[starts : len(parts) - ends]
        pieces = [_write(each, write, field) for each in inner]
        if is_search and not starts:
            pieces.insert(0, anything)
        if is_search and not ends:
            pieces.append(anything)
        written.append(" ".join(pieces) or '""')
    return " | ".join(written)


def _alternatives(node: Node) -> list[Node]:
    if isinstance(node, Choice):
        return [each for part in node.parts for each in _alternatives(part)]
    if isinstance(node, Sequence) and len(node.parts) == 1:
        return _alternatives(node.parts[0])
    return [node]


def _write(node: Node, write: Writer, field: str) -> str:
    match node:
        case Characters(ranges):
            return write.one(ranges)
        case Sequence(parts):
            return f"({' '.join(_write(part, write, field) for part in parts)})" if parts else '""'
        case Choice(parts):
            return f"({' | '.join(_write(part, write, field) for part in parts)})"
        case Repeat(Characters(ranges), least, None):
            first = f"{repeat(write.one(ranges), least, least)} " if least else ""
            return f"({first}{write.run(ranges)})"
        case Repeat(part, least, most):
            return repeat(_write(part, write, field), least, most)
        case Anchor():
            raise GrammarError(
                f"{field}: ^ and $ can only stand at the ends of the expression or of an "
                "alternative of it",
                field=field,
            )


def parse_regex(pattern: str, *, field: str) -> Node:
    """Parse an expression.

    Raises:
        GrammarError: it is malformed, or of a kind that has no grammar.
    """
    parser = _Parser(pattern, field)
    node = parser.choice(0)
    if parser.position < len(pattern):
        parser.refuse("a closing parenthesis without an opening one")
    if size_of(node) > MAX_SIZE:
        raise GrammarError(
            f"{field}: its repetitions stand for more than {MAX_SIZE} characters; lower them",
            field=field,
        )
    return node


def size_of(node: Node) -> int:
    """Characters that it stands for when repetitions are written out."""
    match node:
        case Characters():
            return 1
        case Sequence(parts) | Choice(parts):
            return sum(map(size_of, parts))
        case Repeat(part, least, most):
            return size_of(part) * max(1, least if most is None else most)
        case Anchor():
            return 0


class _Parser:
    """Recursive descent over one expression."""

    def __init__(self, pattern: str, field: str) -> None:
        self.position = 0
        self._pattern = pattern
        self._field = field

    def refuse(self, what: str) -> NoReturn:
        raise GrammarError(
            f"{self._field}: {what} at character {self.position} of {self._pattern[:200]!r}",
            field=self._field,
        )

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.refuse("groups are nested too deeply")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return Sequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            self.refuse("a repeated anchor")
        least, most = bounds
        if most is not None and most < least:
            self.refuse("a repetition whose end is before its beginning")
        self._take("?")  # lazy ones match the same texts
        if self._peek() in ("*", "+", "?") or self._bounds() is not None:
            self.refuse("a repetition of a repetition")
        return Repeat(atom, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._peek() != "{":
            return None
        body, closed, _ = self._pattern[self.position + 1 :].partition("}")
        least, comma, most = body.partition(",")
        if not closed or not _is_count(least) or not (most == "" or _is_count(most)):
            self.refuse("a brace that is no repetition; write \\{")
        self.position += len(body) + 2
        return int(least), (int(most) if most else None) if comma else int(least)

    def _atom(self, depth: int) -> Node:
        character = self._next()
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return Characters(self._class())
            case ".":
                return Characters(ANY_BUT_NEWLINES)
            case "^" | "$":
                return Anchor(character == "^")
            case "\\":
                return Characters(self._escape())
            case "*" | "+" | "?":
                self.position -= 1
                self.refuse("a repetition of nothing")
        return Characters(of_characters(character))

    def _group(self, depth: int) -> Node:
        if self._take("?"):
            if self._take("<") and self._peek() not in ("=", "!"):
                name, closed, _ = self._pattern[self.position :].partition(">")
                if not closed or not name.isidentifier():
                    self.refuse("a group whose name does not end")
                self.position += len(name) + 1
            elif not self._take(":"):
                self.refuse("a look around, a flag or another group that has no grammar")
        node = self.choice(depth + 1)
        if not self._take(")"):
            self.refuse("a parenthesis that is not closed")
        return node

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        pairs: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_item()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._next()
                high = self._class_item()
                if len(low) > 1 or len(high) > 1 or low[0][0] != low[0][1]:
                    self.refuse("a range between classes")
                if high[0][0] < low[0][0]:
                    self.refuse("a range whose end is before its beginning")
                pairs.append((low[0][0], high[0][0]))
            else:
                pairs += low
        ranges = make_ranges(pairs)
        ranges = complement(ranges) if is_negated else ranges
        if not ranges:
            self.refuse("a class without characters")
        return ranges

    def _class_item(self) -> Ranges:
        if self._peek() == "":
            self.refuse("a class that is not closed")
        character = self._next()
        if character != "\\":
            return of_characters(character)
        if self._take("b"):
            return of_characters("\b")
        return self._escape()

    def _escape(self) -> Ranges:
        character = self._next()
        if character.lower() in _CLASSES and character:
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else complement(ranges)
        if character == "0" and self._peek().isdigit():
            self.refuse("an octal escape")
        if character in _CONTROLS and character:
            return of_characters(_CONTROLS[character])
        if character == "x":
            return of_characters(chr(self._hex(2)))
        if character == "u":
            return of_characters(chr(self._code_point()))
        if character == "c" and self._peek().isascii() and self._peek().isalpha():
            return of_characters(chr(ord(self._next().upper()) - 64))
        if not character or character.isalnum():
            self.position -= bool(character)
            self.refuse("an escape that has no grammar or no meaning")
        return of_characters(character)

    def _code_point(self) -> int:
        if self._take("{"):
            digits, closed, _ = self._pattern[self.position :].partition("}")
            if not closed or not 1 <= len(digits) <= 6:
                self.refuse("a code point that does not end")
            code = self._hex(len(digits))
            self.position += 1
        else:
            code = self._hex(4)
            if 0xD800 <= code <= 0xDBFF and self._take("\\"):
                self._take("u")
                code = 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            self.refuse("a code that is no character")
        return code

    def _hex(self, length: int) -> int:
        digits = self._pattern[self.position : self.position + length]
        if len(digits) < length or not all(c in "0123456789abcdefABCDEF" for c in digits):
            self.refuse("an escape without its digits")
        self.position += length
        return int(digits, 16)

    def _peek(self, ahead: int = 0) -> str:
        return self._pattern[self.position + ahead : self.position + ahead + 1]

    def _next(self) -> str:
        character = self._peek()
        self.position += len(character)
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self.position += 1
        return True


def _is_count(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= 5


def python_pattern(node: Node) -> str:
    """The expression in the dialect of `re`, to be searched for."""
    match node:
        case Characters(ranges):
            return f"[{''.join(f'{_python(low)}-{_python(high)}' for low, high in ranges)}]"
        case Sequence(parts):
            return "".join(map(python_pattern, parts))
        case Choice(parts):
            return f"(?:{'|'.join(map(python_pattern, parts))})"
        case Repeat(part, least, most):
            return f"(?:{python_pattern(part)}){{{least},{'' if most is None else most}}}"
        case Anchor(is_start):
            return r"\A" if is_start else r"\Z"


def _python(code: int) -> str:
    return f"\\U{code:08x}"
