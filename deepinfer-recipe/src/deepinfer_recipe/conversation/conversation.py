"""A conversation and the settings that shape its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

from ..arguments import check_bool, check_choice, check_list, check_optional_str
from ..jsontext import from_python
from .messages import Message
from .tools import ToolDefinition

ToolChoice: TypeAlias = Literal["auto", "none", "required"]
ReasoningEffort: TypeAlias = Literal["low", "high", "xhigh", "max"]
ResponseFormat: TypeAlias = Literal["text", "json_object", "json_schema", "regex"]


class Conversation:
    """Messages, tools, thinking mode, effort, and the format of the answer.

    `response_schema` selects the format `json_schema` and `response_regex` the format `regex`;
    None means "not given", any other JSON value is a schema. Immutable.

    Raises:
        TypeError: an argument has another type.
        ValueError: an unknown name, or two response formats at once.
    """

    __slots__ = (
        "_messages",
        "_reasoning_effort",
        "_response_format",
        "_response_regex",
        "_response_schema",
        "_thinking_mode",
        "_tool_choice",
        "_tools",
    )

    def __init__(
        self,
        messages: Sequence[Message] | None = None,
        *,
        thinking_mode: bool = True,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_effort: ReasoningEffort | None = None,
        response_format: Literal["text", "json_object"] = "text",
        response_schema: Any | None = None,
        response_regex: str | None = None,
    ) -> None:
        self._messages = check_list("messages", [] if messages is None else messages, Message)
        self._thinking_mode = check_bool("thinking_mode", thinking_mode)
        self._tools = check_list("tools", [] if tools is None else tools, ToolDefinition)
        self._tool_choice = check_choice("tool_choice", tool_choice, ("auto", "none", "required"))
        if reasoning_effort is not None:
            efforts = ("low", "high", "xhigh", "max")
            check_choice("reasoning_effort", reasoning_effort, efforts)
        self._reasoning_effort = reasoning_effort
        check_choice("response_format", response_format, ("text", "json_object"))
        self._response_schema = from_python(response_schema)
        self._response_regex = check_optional_str("response_regex", response_regex)
        self._response_format = self._resolve_format(response_format)

    def _resolve_format(self, response_format: str) -> ResponseFormat:
        has_schema = self._response_schema is not None
        has_regex = self._response_regex is not None
        if has_schema and has_regex:
            raise ValueError("response_schema and response_regex cannot be combined")
        if response_format == "json_object" and (has_schema or has_regex):
            raise ValueError(
                'response_format "json_object" cannot be combined with response_schema '
                "or response_regex"
            )
        if has_schema:
            return "json_schema"
        return "regex" if has_regex else cast(ResponseFormat, response_format)

    @property
    def messages(self) -> list[Message]:
        """The messages, oldest first."""
        return list(self._messages)

    @property
    def thinking_mode(self) -> bool:
        """Whether the model reasons before it answers."""
        return self._thinking_mode

    @property
    def tools(self) -> list[ToolDefinition]:
        """The declared tools."""
        return list(self._tools)

    @property
    def tool_choice(self) -> ToolChoice:
        """Whether the model may, must or must not call a tool."""
        return cast(ToolChoice, self._tool_choice)

    @property
    def reasoning_effort(self) -> ReasoningEffort | None:
        """The effort in thinking mode; None is the model's default."""
        return self._reasoning_effort

    @property
    def response_format(self) -> ResponseFormat:
        """The format of the answer; whoever samples enforces it."""
        return self._response_format

    @property
    def response_schema(self) -> Any | None:
        """The JSON Schema of the format `json_schema`, or None."""
        return self._response_schema

    @property
    def response_regex(self) -> str | None:
        """The regular expression of the format `regex`, or None."""
        return self._response_regex

    @property
    def shows_tools(self) -> bool:
        """Whether the prompt declares the tools: there are some and the choice is not `none`."""
        return bool(self._tools) and self._tool_choice != "none"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversation) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash(tuple(self._messages))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name[1:]}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Conversation({shown})"
