"""The body of an Anthropic Messages request as typed fields. No rule beyond types is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..conversation import ToolDefinition
from .body import (
    BodyError,
    optional,
    read_any,
    read_bool,
    read_f32,
    read_list,
    read_map,
    read_name,
    read_str,
    read_tag,
    read_uint,
    required,
)
from .settings import read_effort, read_thinking
from .tools import Choice

_BLOCKS = (
    "text", "image", "document", "thinking", "server_tool_use", "tool_use", "tool_result",
    "web_search_tool_result", "tool_addition",
)  # fmt: skip
_RESULT_BLOCKS = ("text", "image", "document", "tool_reference")
_MEDIA_TYPES = ("image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp")
Blocks: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MessagesTool:
    """A declared tool: one of the client, or one of the server by its type."""

    client: ToolDefinition | None
    server_type: str = ""
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class MessagesMessage:
    """One message of the request."""

    role: str
    content: str | Blocks


@dataclass(frozen=True, slots=True)
class MessagesBody:
    """The fields of a Messages request that mean something here."""

    model: str
    messages: list[MessagesMessage]
    max_tokens: int | None
    system: str | list[str] | None
    stop_sequences: list[str] | None
    stream: bool
    temperature: float | None
    top_p: float | None
    tools: list[MessagesTool]
    tool_choice: Choice
    thinking: bool | None
    effort: str | None


def read_messages_body(value: Any) -> MessagesBody:
    """Read a Messages request.

    Raises:
        BodyError: a field is missing or has the wrong type.
    """
    fields = read_map(value, "struct MessagesRequest")
    optional(fields, "metadata", _read_metadata)
    return MessagesBody(
        model=required(fields, "model", read_str),
        messages=required(fields, "messages", read_list(_read_message)),
        max_tokens=optional(fields, "max_tokens", read_uint(32)),
        system=optional(fields, "system", _read_system),
        stop_sequences=optional(fields, "stop_sequences", read_list(read_str)),
        stream=bool(optional(fields, "stream", read_bool)),
        temperature=optional(fields, "temperature", read_f32),
        top_p=optional(fields, "top_p", read_f32),
        tools=optional(fields, "tools", read_list(_read_tool)) or [],
        tool_choice=optional(fields, "tool_choice", _read_choice) or Choice(),
        thinking=optional(fields, "thinking", read_thinking),
        effort=optional(fields, "output_config", _read_output_config),
    )


def _read_metadata(value: Any) -> None:
    optional(read_map(value, "struct MessagesMetadata"), "user_id", read_str)


def _read_output_config(value: Any) -> str | None:
    return optional(read_map(value, "struct MessagesOutputConfig"), "effort", read_effort)


def _read_system(value: Any) -> str | list[str]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BodyError("expected a string or a list")

    def read_block(item: Any) -> str:
        return required(read_tag(item, "SystemBlock", ("text",)), "text", read_str)

    return read_list(read_block)(value)


def _read_message(value: Any) -> MessagesMessage:
    fields = read_map(value, "struct MessagesMessage")
    return MessagesMessage(
        required(fields, "role", read_name("user", "assistant", "system")),
        required(fields, "content", _read_content),
    )


def _read_content(value: Any) -> str | Blocks:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BodyError("expected a string or a list")
    return [_read_block(item, _BLOCKS) for item in value]


def _read_block(value: Any, names: Sequence[str]) -> dict[str, Any]:
    fields = read_tag(value, "MessagesContentBlock", names)
    kind: str = fields["type"]
    block: dict[str, Any] = {"type": kind}
    match kind:
        case "text":
            block["text"] = required(fields, "text", read_str)
        case "image":
            block["source"] = required(fields, "source", _read_image_source)
        case "document":
            source = read_map(required(fields, "source", read_any), "struct DocumentSource")
            media_type = optional(source, "media_type", read_str)
            block["media_type"] = "unknown" if media_type is None else media_type
        case "thinking":
            optional(fields, "signature", read_str)
            block["thinking"] = required(fields, "thinking", read_str)
        case "tool_use":
            block["id"] = required(fields, "id", read_str)
            block["name"] = required(fields, "name", read_str)
            block["input"] = required(fields, "input", read_any)
        case "tool_result":
            optional(fields, "is_error", read_bool)
            block["id"] = required(fields, "tool_use_id", read_str)
            block["content"] = optional(fields, "content", _read_result_content) or []
        case "tool_reference":
            block["name"] = required(fields, "tool_name", read_str)
        case "tool_addition":
            tool = required(fields, "tool", lambda v: read_tag(v, "Tool", ("tool_reference",)))
            block["name"] = required(tool, "name", read_str)
        case "server_tool_use":
            required(fields, "id", read_str)
            required(fields, "name", read_str)
            required(fields, "input", read_any)
        case "web_search_tool_result":
            required(fields, "tool_use_id", read_str)
            required(fields, "content", read_any)
    return block


def _read_image_source(value: Any) -> dict[str, Any]:
    fields = read_tag(value, "ImageSource", ("base64", "url", "file"))
    kind: str = fields["type"]
    if kind == "base64":
        media_type = required(fields, "media_type", read_name(*_MEDIA_TYPES))
        data = required(fields, "data", read_str)
        return {"type": kind, "media_type": media_type, "data": data}
    name = "url" if kind == "url" else "file_id"
    return {"type": kind, "url": required(fields, name, read_str)}


def _read_result_content(value: Any) -> Blocks:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise BodyError("expected a string or a list")
    return [_read_block(item, _RESULT_BLOCKS) for item in value]


def _read_tool(value: Any) -> MessagesTool:
    fields = read_map(value, "struct MessagesTool")
    if "type" in fields:
        name = optional(fields, "name", read_str)
        return MessagesTool(None, read_str(fields["type"]), name)
    tool = ToolDefinition(
        required(fields, "name", read_str),
        optional(fields, "description", read_str),
        fields.get("input_schema"),
        None,
        bool(optional(fields, "defer_loading", read_bool)),
    )
    return MessagesTool(tool)


def _read_choice(value: Any) -> Choice:
    fields = read_tag(value, "MessagesToolChoice", ("auto", "any", "tool", "none"))
    optional(fields, "disable_parallel_tool_use", read_bool)
    if fields["type"] == "tool":
        return Choice(function=required(fields, "name", read_str))
    return Choice("none" if fields["type"] == "none" else "auto")
