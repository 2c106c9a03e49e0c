"""The body of a Chat Completions request as typed fields. No rule beyond types is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ..conversation import ToolCall, ToolDefinition
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
from .settings import read_effort, read_stop, read_thinking
from .tools import Choice

ROLES = ("system", "user", "assistant", "tool", "latest_reminder")
Content: TypeAlias = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of the request."""

    role: str
    content: Content | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str = ""
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class ChatBody:
    """The fields of a Chat Completions request that mean something here."""

    model: str
    messages: list[ChatMessage]
    frequency_penalty: float | None
    presence_penalty: float | None
    logprobs: bool | None
    top_logprobs: int | None
    max_tokens: int | None
    n: int | None
    seed: int | None
    stop: str | list[str] | None
    stream: bool
    stream_options: dict[str, Any] | None
    temperature: float | None
    top_p: float | None
    response_format: dict[str, Any] | None
    tools: list[ToolDefinition]
    given_parameters: list[int]
    """Indices of the tools whose parameters the request gives."""
    tool_choice: Choice
    thinking: bool | None
    reasoning_effort: str | None


def read_chat_body(value: Any) -> ChatBody:
    """Read a Chat Completions request.

    Raises:
        BodyError: a field is missing or has the wrong type.
    """
    fields = read_map(value, "struct ChatCompletionRequest")
    optional(fields, "parallel_tool_calls", read_bool)
    tools = optional(fields, "tools", read_list(_read_tool)) or []
    return ChatBody(
        model=required(fields, "model", read_str),
        messages=required(fields, "messages", read_list(_read_message)),
        frequency_penalty=optional(fields, "frequency_penalty", read_f32),
        presence_penalty=optional(fields, "presence_penalty", read_f32),
        logprobs=optional(fields, "logprobs", read_bool),
        top_logprobs=optional(fields, "top_logprobs", read_uint(8)),
        max_tokens=optional(fields, "max_tokens", read_uint(32)),
        n=optional(fields, "n", read_uint(8)),
        seed=optional(fields, "seed", read_uint(64)),
        stop=optional(fields, "stop", read_stop),
        stream=bool(optional(fields, "stream", read_bool)),
        stream_options=optional(fields, "stream_options", _read_stream_options),
        temperature=optional(fields, "temperature", read_f32),
        top_p=optional(fields, "top_p", read_f32),
        response_format=optional(fields, "response_format", _read_response_format),
        tools=[tool for tool, _ in tools],
        given_parameters=[index for index, (_, is_given) in enumerate(tools) if is_given],
        tool_choice=optional(fields, "tool_choice", _read_choice) or Choice(),
        thinking=optional(fields, "thinking", read_thinking),
        reasoning_effort=optional(fields, "reasoning_effort", read_effort),
    )


def _read_message(value: Any) -> ChatMessage:
    fields = read_tag(value, "ChatCompletionRequestMessage", ROLES, tag="role")
    role: str = fields["role"]
    if role == "latest_reminder":
        return ChatMessage(role, required(fields, "content", read_str))
    if role == "tool":
        content = required(fields, "content", _read_content)
        return ChatMessage(role, content, tool_call_id=required(fields, "tool_call_id", read_str))
    optional(fields, "name", read_str)
    if role != "assistant":
        return ChatMessage(role, required(fields, "content", _read_content))
    return ChatMessage(
        role,
        optional(fields, "content", _read_content),
        reasoning_content=optional(fields, "reasoning_content", read_str),
        tool_calls=optional(fields, "tool_calls", read_list(_read_call)),
        prefix=bool(optional(fields, "prefix", read_bool)),
    )


def _read_content(value: Any) -> Content:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BodyError("content should be a string or a list")
    return [_read_block(item) for item in value]


def _read_block(value: Any) -> dict[str, Any]:
    fields = read_tag(value, "ContentPart", ("text", "image_url", "file"))
    if fields["type"] == "text":
        return {"type": "text", "text": required(fields, "text", read_str)}
    if fields["type"] == "image_url":
        image = required(
            fields, "image_url", lambda v: read_map(v, "struct ChatCompletionImageUrl")
        )
        detail = optional(image, "detail", read_name("low", "high", "original", "auto"))
        url = required(image, "url", read_str)
        return {"type": "image_url", "url": url, "detail": detail or "high"}
    file = {name: optional(fields, name, read_str) for name in ("file_id", "file_data", "filename")}
    return {"type": "file", **file}


def _read_call(value: Any) -> ToolCall:
    fields = read_tag(value, "ChatCompletionToolCall", ("function",))
    function = required(fields, "function", lambda v: read_map(v, "struct FunctionCall"))
    return ToolCall(
        required(fields, "id", read_str),
        required(function, "name", read_str),
        required(function, "arguments", read_str),
    )


def _read_tool(value: Any) -> tuple[ToolDefinition, bool]:
    fields = read_tag(value, "ChatCompletionTool", ("function",))
    function = required(fields, "function", lambda v: read_map(v, "struct FunctionDefinition"))
    parameters = optional(function, "parameters", read_any)
    tool = ToolDefinition(
        required(function, "name", read_str),
        optional(function, "description", read_str),
        parameters,
        optional(function, "strict", read_bool),
    )
    return tool, parameters is not None


def _read_choice(value: Any) -> Choice:
    if isinstance(value, str):
        match value:
            case "none" | "auto" | "required":
                return Choice(value)
        raise BodyError("expected one of `none`, `auto`, `required` or a tool")
    fields = read_tag(value, "ToolChoice", ("function",))
    function = required(fields, "function", lambda v: read_map(v, "struct FunctionName"))
    return Choice(function=required(function, "name", read_str))


def _read_stream_options(value: Any) -> dict[str, Any]:
    fields = read_map(value, "struct ChatCompletionStreamOptions")
    return {"include_usage": optional(fields, "include_usage", read_bool)}


def _read_response_format(value: Any) -> dict[str, Any]:
    names = ("json_object", "json_schema", "regex", "text")
    fields = read_tag(value, "ResponseFormat", names)
    match fields["type"]:
        case "json_schema":
            schema = required(
                fields, "json_schema", lambda v: read_map(v, "struct ResponseFormatJsonSchema")
            )
            optional(schema, "name", read_str)
            return {
                "type": "json_schema",
                "schema": required(schema, "schema", read_any),
                "strict": optional(schema, "strict", read_bool),
            }
        case "regex":
            return {"type": "regex", "regex": required(fields, "regex", read_str)}
    return {"type": fields["type"]}
