"""Tools as a conversation holds them: definitions and historical calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arguments import check_bool, check_optional_str, check_str
from ..jsontext import from_python


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made earlier. `arguments` should encode a JSON object; not checked."""

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        check_str("id", self.id)
        check_str("name", self.name)
        check_str("arguments", self.arguments)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool of the client.

    `parameters` is its JSON Schema, kept as given; only request conversion normalizes the schema
    of a strict tool. A tool with `defer_loading` is declared but not shown to the model yet.
    """

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    defer_loading: bool = False

    def __post_init__(self) -> None:
        check_str("name", self.name)
        check_optional_str("description", self.description)
        object.__setattr__(self, "parameters", from_python(self.parameters))
        if self.strict is not None:
            check_bool("strict", self.strict)
        check_bool("defer_loading", self.defer_loading)
