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
_BOUNDARIES = frozenset("bBAz")
_CLASS_ESCAPE_KINDS = frozenset("dDsSwWpP")
_PROPERTIES = frozenset(
    "L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po "  # noqa: SIM905
    "S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn".split()
)
_GROUP = re.compile(r"\((?:\?(?::|=|!|<=|<!|P?<[A-Za-z_]\w*>|[imsux]+(?:-[imsux]+)?:?))?")


def is_regex(pattern: str) -> bool:
    """Whether the pattern is well formed."""
    position, can_repeat, was_repeated = 0, False, False
    groups: list[bool] = []  # the open ones; True for a lookaround, which cannot be repeated
    while position < len(pattern):
        char = pattern[position]
        if char in "*+?{":
            found = _QUANTIFIER.match(pattern, position)
            if found is None or not _is_range(found):
                return False
            if not can_repeat and not (char == "{" and was_repeated):
                return False
            position, can_repeat, was_repeated = found.end(), False, True
            continue
        end: int | None = position + 1
        if char == "(":
            group = _GROUP.match(pattern, position)
            end = group.end() if group is not None else None
            is_flag = group is not None and group.group()[-1] not in "(:=!>"
            if is_flag and end is not None:
                if pattern[end : end + 1] != ")":
                    return False
                end += 1
            is_lookaround = group is not None and group.group()[-1] in "=!"
            if not is_flag:
                groups.append(is_lookaround)
        elif char == ")":
            if not groups:
                return False
            can_repeat, was_repeated, position = not groups.pop(), False, position + 1
            continue
        elif char == "[":
            end = _class_end(pattern, position)
        elif char == "\\":
            end = _escape_end(pattern, position)
        if end is None or (pattern.startswith("(?", position) and end - position == 1):
            return False
        can_repeat, was_repeated = char not in "(|", False
        position = end
    return not groups


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
    while position < len(pattern):
        if pattern[position] == "]" and position > first:
            return position + 1
        low, end = _class_member(pattern, position)
        if end is not None and pattern.startswith("-", end):
            after = pattern[end + 1 : end + 2]
            if after not in ("]", ""):
                high, end = _class_member(pattern, end + 1)
                if low is None or high is None or high < low:
                    return None
        if end is None:
            return None
        position = end
    return None


def _class_member(pattern: str, position: int) -> tuple[str | None, int | None]:
    """Return a character of a class (None for a set of them) and its end, None if malformed."""
    if pattern[position] != "\\":
        return pattern[position], position + 1
    kind = pattern[position + 1 : position + 2]
    end = None if kind in _BOUNDARIES else _escape_end(pattern, position)
    return (None if kind in _CLASS_ESCAPE_KINDS else kind), end
