"""Whether a text is a regular expression of JSON Schema (ECMA 262, as validators compile it).

A syntax check only; nothing is matched, so a hostile pattern costs no more than its length.
"""

from __future__ import annotations

import re

_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})[?+]?")
_ESCAPE = re.compile(
    r"""\\(?:
        [dDsSwWbBAztnrfv]
      | c[A-Za-z]
      | x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]+\})
      | u(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]+\})
      | [pP](?:[A-Z]|\{\^?[A-Za-z][A-Za-z_]*(?:=[A-Za-z_]+)?\})
      | [^A-Za-z0-9\s]
    )""",
    re.VERBOSE,
)
_CLASS_ESCAPE_KINDS = frozenset("dDsSwWpP")
_PROPERTIES = frozenset(
    "L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
    "C Cc Cf Cs Co Cn".split()
)
_GROUP = re.compile(r"\((?:\?(?::|=|!|<=|<!|P?<[A-Za-z_]\w*>|[imsux]+(?:-[imsux]+)?:?))?")


def is_regex(pattern: str) -> bool:
    """Whether the pattern is well formed."""
    position, depth, can_repeat = 0, 0, False
    while position < len(pattern):
        char = pattern[position]
        if char in "*+?{":
            found = _QUANTIFIER.match(pattern, position)
            if found is None or not can_repeat or not _is_range(found):
                return False
            position, can_repeat = found.end(), False
            continue
        end: int | None = position + 1
        if char == "(":
            group = _GROUP.match(pattern, position)
            end = group.end() if group is not None else None
            is_flag = group is not None and group.group()[-1] not in "(:=!>"
            if is_flag and pattern[end or 0 : (end or 0) + 1] != ")":
                return False
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "[":
            end = _class_end(pattern, position)
        elif char == "\\":
            end = _escape_end(pattern, position)
        if end is None or depth < 0 or pattern.startswith("(?", position) and end - position == 1:
            return False
        can_repeat = char not in "(|"
        position = end
    return depth == 0


def _is_range(quantifier: re.Match[str]) -> bool:
    low, comma, high = quantifier.groups()
    return not (comma and high) or int(low) <= int(high)


def _escape_end(pattern: str, position: int) -> int | None:
    found = _ESCAPE.match(pattern, position)
    if found is None:
        return None
    text = found.group()
    if text[1] in "pP":
        name = text[2:].strip("{}").lstrip("^")
        if len(name) <= 2 and name not in _PROPERTIES:
            return None
    return found.end()


def _class_end(pattern: str, position: int) -> int | None:
    """Return the end of the bracketed class that begins at `position`."""
    position += 1
    if pattern.startswith("^", position):
        position += 1
    first = position
    previous: str | None = None  # the character that a range could begin with
    while position < len(pattern):
        char = pattern[position]
        if char == "]" and position > first:
            return position + 1
        end: int | None = position + 1
        if char == "[":
            end = _class_end(pattern, position)
        elif char == "\\":
            end = _escape_end(pattern, position)
        if end is None:
            return None
        is_set = char == "[" or (char == "\\" and pattern[position + 1] in _CLASS_ESCAPE_KINDS)
        is_range = pattern.startswith("-", end) and pattern[end + 1 : end + 2] not in ("]", "")
        if is_set and is_range:
            return None
        if char == "-" and previous is not None and not is_set:
            if pattern[end : end + 1] == "\\" and pattern[end + 1 : end + 2] in _CLASS_ESCAPE_KINDS:
                return None
            if end < len(pattern) and pattern[end] not in "]\\[" and pattern[end] < previous:
                return None
        previous = None if is_set or char == "\\" or char == "-" else char
        position = end
    return None
