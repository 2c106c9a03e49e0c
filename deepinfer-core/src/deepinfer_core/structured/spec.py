"""`StructuredOutput`: the form that a request wants its answer in. Plain validated values.

Whether the form can be enforced is found out when it is compiled (`compiler.py`).
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deepinfer_core.field_types import Text, Whole

MAX_CHARS = 1 << 20
"""Of a schema, a grammar or an expression."""


class StructuredOutput(BaseModel):
    """The form of an answer; exactly one of the first eight is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    json_schema: str | None = None
    """A JSON Schema (draft 2020-12), as an object or as JSON text."""
    json_object: Literal[True] | None = None
    """Any JSON object."""
    regex: Text | None = Field(default=None, max_length=MAX_CHARS)
    """A regular expression (ECMAScript) that the whole answer matches."""
    choice: tuple[Text, ...] | None = Field(default=None, min_length=1)
    """One of these texts."""
    grammar: Text | None = Field(default=None, min_length=1, max_length=MAX_CHARS)
    """Rules in EBNF, as llama.cpp and xgrammar have them, from `root` on."""
    lark: Text | None = Field(default=None, min_length=1, max_length=MAX_CHARS)
    """Rules as Lark has them, from `start` on."""
    structural_tag: str | None = None
    """A structural tag as xgrammar has it, as an object or as JSON text."""
    markup: str | None = None
    """Texts, tokens, values and free text in a tree, as recipes give it for calls of tools."""
    max_whitespace: Whole | None = Field(default=None, ge=0, le=64)
    """Of JSON: characters between two of its tokens, at most; default: `max_whitespace` of the
    engine."""

    @field_validator("json_schema", "structural_tag", "markup", mode="before")
    @classmethod
    def _as_json_text(cls, value: object) -> object:
        if value is None:
            return None
        if not isinstance(value, str):
            return _dump(value)
        if len(value) > MAX_CHARS:
            raise ValueError(f"longer than {MAX_CHARS} characters")
        try:
            parsed = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON: {error}") from None
        return _dump(parsed)

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, value: str | None) -> str | None:
        if value is not None and value[0] not in "{tf":
            raise ValueError("a schema is an object, true or false")
        return value

    @field_validator("structural_tag", "markup")
    @classmethod
    def _is_object(cls, value: str | None) -> str | None:
        if value is not None and (value[0] != "{" or value == "{}"):
            raise ValueError("needs an object that is not empty")
        return value

    @field_validator("choice", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("give a list of texts")
        return value

    @field_validator("choice")
    @classmethod
    def _usable_choices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not all(value):
            raise ValueError("an empty text cannot be chosen")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> StructuredOutput:
        given = self.given
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of {', '.join(FORMS)}; there is {found}")
        return self

    @property
    def given(self) -> list[str]:
        """Names of the forms that were given."""
        return [name for name in FORMS if getattr(self, name) is not None]

    @property
    def form(self) -> str:
        """The name of the form."""
        return self.given[0]


FORMS = (
    "json_schema",
    "json_object",
    "regex",
    "choice",
    "grammar",
    "lark",
    "structural_tag",
    "markup",
)


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON value: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
