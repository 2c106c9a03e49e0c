"""The free-form input of a custom tool, out of the JSON arguments that the model writes.

A custom tool is declared to the model as a function with one string parameter `input`. If the
arguments begin so, the unescaped string is the input and what follows it is dropped; arguments
of any other shape are passed on as they are.
"""

from __future__ import annotations

import re

_OPENING = '{"input": "'
_SPECIAL = re.compile(r'["\\]')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CustomInput:
    """Extracts the input from JSON text that arrives in stretches."""

    __slots__ = ("_buffer", "_is_closed", "_is_decided", "_is_string")

    def __init__(self) -> None:
        self._buffer = ""
        self._is_decided = False
        self._is_string = False
        self._is_closed = False

    def feed(self, json_text: str) -> str | None:
        """Take more of the arguments; return more of the input, or None if nothing is certain."""
        if self._is_decided and not self._is_string:
            return json_text or None
        if self._is_closed:
            return None
        self._buffer += json_text
        if not self._is_decided:
            if len(self._buffer) < len(_OPENING) and _OPENING.startswith(self._buffer):
                return None
            self._is_decided = True
            self._is_string = self._buffer.startswith(_OPENING)
            if not self._is_string:
                return self._take_buffer()
            self._buffer = self._buffer[len(_OPENING) :]
        return self._unescape() or None

    def finish(self) -> str | None:
        """Return what was held back."""
        return self._take_buffer() or None

    def _take_buffer(self) -> str:
        buffer, self._buffer = self._buffer, ""
        return buffer

    def _unescape(self) -> str:
        """Return the text up to the closing quote or an escape whose end is missing."""
        text, parts, position = self._buffer, [], 0
        while not self._is_closed:
            found = _SPECIAL.search(text, position)
            if found is None:
                parts.append(text[position:])
                position = len(text)
                break
            parts.append(text[position : found.start()])
            position = found.start()
            if text[position] == '"':
                self._is_closed = True
                break
            escape = _read_escape(text, position)
            if escape is None:
                break
            parts.append(escape[0])
            position = escape[1]
        self._buffer = "" if self._is_closed else text[position:]
        return "".join(parts)


def _read_escape(text: str, start: int) -> tuple[str, int] | None:
    """Return what an escape stands for and where it ends, or None if its end is missing.

    An escape that is none stands for itself, up to the character that spoils it.
    """
    if start + 1 >= len(text):
        return None
    kind = text[start + 1]
    if kind != "u":
        return _ESCAPES.get(kind, "\\" + kind), start + 2
    end, is_valid = _match_shape(text, start, "\\uXXXX")
    code = int(text[start + 2 : end], 16) if is_valid else None
    if code is not None and 0xD800 <= code < 0xDC00:
        end, is_valid = _match_shape(text, start, "\\uXXXX\\uXXXX")
        low = int(text[start + 8 : end], 16) if is_valid else None
        if low is not None and 0xDC00 <= low < 0xE000:
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    if is_valid is None:
        return None
    if code is None or not is_valid or 0xD800 <= code < 0xE000:
        return text[start:end], end
    return chr(code), end


def _match_shape(text: str, start: int, shape: str) -> tuple[int, bool | None]:
    """Return where the match of a shape ends and whether it is whole; None if text is missing."""
    for offset, expected in enumerate(shape):
        position = start + offset
        if position >= len(text):
            return position, None
        char = text[position]
        if char not in _HEX_DIGITS if expected == "X" else char != expected:
            return position + 1, False
    return start + len(shape), True
