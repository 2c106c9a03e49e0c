"""The special tokens of DeepSeek's prompt formats and their spellings.

Owns names and text only. Token ids belong to a tokenizer; which occurrences in a prompt are
tokens rather than text is decided by `prompts.pieces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from .arguments import check_instance, check_str

IMAGE_SPECIAL_TOKEN_ID = 129264
"""Id that image placeholders have in the published V4.1 vocabulary."""


class SpecialToken(Enum):
    """A kind of special token; the value is its default spelling."""

    Bos = "<｜begin▁of▁sentence｜>"
    Eos = "<｜end▁of▁sentence｜>"
    ThinkingStart = "<think>"
    ThinkingEnd = "</think>"
    System = "<｜System｜>"
    User = "<｜User｜>"
    Assistant = "<｜Assistant｜>"
    LatestReminder = "<｜latest_reminder｜>"
    Dsml = "｜DSML｜"
    Image = "<｜image｜>"
    Ref = "<｜ref｜>"
    RefEnd = "<｜/ref｜>"
    Box = "<｜box｜>"
    BoxEnd = "<｜/box｜>"
    Point = "<｜point｜>"
    PointEnd = "<｜/point｜>"
    Polygon = "<｜polygon｜>"
    PolygonEnd = "<｜/polygon｜>"

    __hash__ = object.__hash__  # members are unique; an Enum would hash its name in Python

    def default_str(self) -> str:
        """Return the default spelling of this token."""
        return self.value


class SpecialTokens:
    """A mapping from each `SpecialToken` to its spelling; only overrides need to be given.

    Empty and equal spellings are accepted: an empty one renders no text and no token.

    Raises:
        TypeError: a keyword names no token, or a spelling is not a string.
        UnicodeEncodeError: a spelling holds a lone surrogate.
    """

    __slots__ = ("_spellings",)

    def __init__(self, **overrides: str | None) -> None:
        self._spellings = {token: token.value for token in SpecialToken}
        for keyword, spelling in overrides.items():
            if keyword not in _KEYWORDS:
                raise TypeError(f"SpecialTokens() got an unexpected keyword argument '{keyword}'")
            if spelling is not None:
                self._spellings[_KEYWORDS[keyword]] = check_str(keyword, spelling)

    def token(self, token: SpecialToken) -> str:
        """Return the spelling of `token` in this mapping."""
        return self._spellings[check_instance("token", token, SpecialToken)]

    @property
    def spellings(self) -> Mapping[SpecialToken, str]:
        """The spelling of every token."""
        return self._spellings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecialTokens) and self._spellings == other._spellings

    def __hash__(self) -> int:
        return hash(tuple(self._spellings.values()))

    def __repr__(self) -> str:
        changed = {
            keyword: self._spellings[token]
            for keyword, token in _KEYWORDS.items()
            if self._spellings[token] != token.value
        }
        return f"SpecialTokens({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def _keyword(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


_KEYWORDS = {_keyword(token.name): token for token in SpecialToken}
