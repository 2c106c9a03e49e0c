"""The syntaxes in which a regular expression of a JSON Schema is read, as data.

`STRICT` and `LAX` are those of the two engines of today's validators, `ECMA` is that of ECMA 262 in
Unicode mode. Knows nothing of how a pattern is read.
"""

from __future__ import annotations

import re
from enum import Enum

_GREED = r"(?:\?\+?|\+)?"
_BRACES = r"\{(?P<low>\d+)(?:,(?P<high>\d*))?\}"
_SPACED_BRACES = r"\{[ ]*(?P<low>\d+)[ ]*(?:,[ ]*(?P<high>\d*)[ ]*)?\}"
_LAX_BRACES = rf"{_BRACES}|\{{,\d*\}}"
_ESCAPE = r"""\\(?:
        [dDsSwWbBAztnrfv]
      | x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]{1,8}\})
      | u(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,8}\})
      | U(?:[0-9A-Fa-f]{8}|\{[0-9A-Fa-f]{1,8}\})
      | [pP](?:[A-Z]|\{[ ]*\^?[A-Za-z][A-Za-z_]*(?:=[A-Za-z_]+)?[ ]*\})
      | [\x00-/:-@\[-`{-\x7f]
      | %s
    )"""
_ECMA_ESCAPE = r"""\\(?:
        [dDsSwWbBtnrfv] | 0(?!\d) | c[A-Za-z] | x[0-9A-Fa-f]{2}
      | u(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,8}\})
      | [pP]\{[A-Za-z0-9_]+(?:=[A-Za-z0-9_]+)?\}
      | [\x00-/:-@\[-`{-\x7f]
    )"""


class Syntax(Enum):
    """Whose syntax a pattern is read in: how a repetition, an escape and a group begin."""

    STRICT = (
        rf"(?:[*+?]|{_SPACED_BRACES}){_GREED}",
        _ESCAPE % "a | c[A-Za-z]",
        r"\((?:\?(?:[:=!]|<[=!]|P?<(?P<name>[^\W\d]\w*)>"
        r"|(?P<flags>[imsuxUR]*(?:-[imsuxUR]+)?)(?P<scoped>:?)))?",
    )
    LAX = (
        rf"(?:[*+?]|{_LAX_BRACES}){_GREED}",
        _ESCAPE % r"[aehHGKNORZ] | [^\x00-\x7f]",
        r"\((?:\?(?:[:=!>~]|<[=!]|P?<(?P<name>[\w-]+)>"
        r"|(?P<flags>[imsuxUR]*(?:-[imsuxUR]+)?)(?P<scoped>:?)))?",
    )
    ECMA = (
        rf"(?:[*+?]|{_BRACES})\??",
        _ECMA_ESCAPE,
        r"\((?:\?(?:[:=!]|<[=!]|<(?P<name>(?!\d)[\w$]+)>"
        r"|(?P<flags>[ims]*(?:-[ims]*)?)(?P<scoped>:)))?",
    )

    def __init__(self, quantifier: str, escape: str, group: str) -> None:
        self.quantifier = re.compile(quantifier)
        self.escape = re.compile(escape, re.VERBOSE)
        self.group = re.compile(group)
