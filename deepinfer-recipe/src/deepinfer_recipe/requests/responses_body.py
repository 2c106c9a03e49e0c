"""The body of a Responses request as typed fields. No rule beyond types is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from .responses_tools import read_execution, read_responses_tool
from .settings import read_effort
from .tools import Choice

_ROLES = ("user", "assistant", "system", "developer")
_BLOCKS = ("input_text", "output_text", "input_image", "input_file")
_OUTPUT_BLOCKS = ("input_text", "input_image", "input_file")
_SUMMARIES = ("auto", "concise", "detailed")
_WEB_SEARCH = ("web_search", "web_search_2025_08_26")


@dataclass(frozen=True, slots=True)
class ResponsesBody:
    """The fields of a Responses request that mean something here."""

    model: str
    input: str | list[dict[str, Any]] | None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    stream: bool
    reasoning: dict[str, Any]
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: Any
    """As the request gives it, `auto` if it does not."""
    user: str | None

    @property
    def choice(self) -> Choice:
        """The tool choice; one of web search is `auto`."""
        if isinstance(self.tool_choice, str):
            match self.tool_choice:
                case "none" | "auto" | "required" as mode:
                    return Choice(mode)
        if self.chooses_web_search:
            return Choice()
        return Choice(function=self.tool_choice["name"])

    @property
    def chooses_web_search(self) -> bool:
        """Whether the choice is a search by the server."""
        return isinstance(self.tool_choice, dict) and self.tool_choice["type"] in _WEB_SEARCH


def read_responses_body(value: Any) -> ResponsesBody:
    """Read a Responses request.

    Raises:
        BodyError: a field is missing or has the wrong type.
    """
    fields = read_map(value, "struct ResponsesRequest")
    return ResponsesBody(
        model=required(fields, "model", read_str),
        input=optional(fields, "input", _read_input),
        instructions=optional(fields, "instructions", read_str),
        max_output_tokens=optional(fields, "max_output_tokens", read_uint(32)),
        temperature=optional(fields, "temperature", read_f32),
        top_p=optional(fields, "top_p", read_f32),
        top_logprobs=optional(fields, "top_logprobs", read_uint(8)),
        stream=bool(optional(fields, "stream", read_bool)),
        reasoning=optional(fields, "reasoning", _read_reasoning)
        or {"effort": None, "summary": None},
        text=optional(fields, "text", _read_text)
        or {"format": {"type": "text"}, "verbosity": None},
        tools=optional(fields, "tools", read_list(read_responses_tool)) or [],
        tool_choice=optional(fields, "tool_choice", _read_choice) or "auto",
        user=optional(fields, "user", read_str),
    )


def _read_reasoning(value: Any) -> dict[str, Any]:
    fields = read_map(value, "struct ResponsesReasoningConfig")
    former_name = optional(fields, "generate_summary", read_name(*_SUMMARIES))
    return {
        "effort": optional(fields, "effort", read_effort),
        "summary": optional(fields, "summary", read_name(*_SUMMARIES)) or former_name,
    }


def _read_text(value: Any) -> dict[str, Any]:
    fields = read_map(value, "struct ResponsesTextConfig")
    text_format: dict[str, Any] = {"type": "text"}
    if "format" in fields:
        text_format = _read_text_format(fields["format"])
    verbosity = optional(fields, "verbosity", read_name("low", "medium", "high"))
    return {"format": text_format, "verbosity": verbosity}


def _read_text_format(value: Any) -> dict[str, Any]:
    fields = read_tag(value, "ResponsesTextFormat", ("text", "json_schema", "json_object"))
    if fields["type"] != "json_schema":
        return {"type": fields["type"]}
    return {
        "type": "json_schema",
        "name": required(fields, "name", read_str),
        "schema": required(fields, "schema", read_any),
        "description": optional(fields, "description", read_str),
        "strict": optional(fields, "strict", read_bool),
    }


def _read_choice(value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict) or "type" not in value:
        raise BodyError("expected one of `none`, `auto`, `required` or a tool choice object")
    fields = read_tag(value, "ResponsesToolChoice", ("function", *_WEB_SEARCH, "custom"))
    if fields["type"] in _WEB_SEARCH:
        return {"type": fields["type"]}
    return {"type": fields["type"], "name": required(fields, "name", read_str)}


def _read_input(value: Any) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BodyError("input should be a string or a list of input items")
    return [_read_item(item) for item in value]


def _read_item(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not ("type" in value or "role" in value):
        raise BodyError("invalid input item")
    if "type" not in value:
        return _read_message(value)
    kind = read_map(value, "a map")["type"]
    if not isinstance(kind, str):
        read_tag(value, "ResponsesInputItem", ())
    match kind:
        case "message":
            return _read_message(value)
        case "reasoning":
            optional(value, "encrypted_content", read_str)
            parts = optional(value, "content", read_list(_read_reasoning_text)) or []
            return {"type": kind, "texts": parts}
        case "web_search_call":  # stands where reasoning could, and says nothing
            return {"type": "reasoning", "texts": []}
        case "function_call":
            return {
                **_read_call(value),
                "arguments": required(value, "arguments", read_str),
                "namespace": optional(value, "namespace", read_str),
            }
        case "custom_tool_call":
            return {**_read_call(value), "input": required(value, "input", read_str)}
        case "tool_search_call":
            optional(value, "execution", read_execution)
            arguments = required(value, "arguments", lambda v: read_map(v, "a map"))
            call_id = required(value, "call_id", read_str)
            return {"type": kind, "call_id": call_id, "arguments": arguments}
        case "function_call_output":
            return {
                "type": kind,
                "call_id": optional(value, "call_id", read_str),
                "output": required(value, "output", _read_output),
            }
        case "custom_tool_call_output":
            call_id = required(value, "call_id", read_str)
            output = optional(value, "output", _read_output) or []
            return {"type": kind, "call_id": call_id, "output": output}
        case "tool_search_output":
            optional(value, "execution", read_execution)
            call_id = required(value, "call_id", read_str)
            tools = required(value, "tools", read_list(read_responses_tool))
            return {"type": kind, "call_id": call_id, "tools": tools}
    return {"type": "unknown"}


def _read_call(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": value["type"],
        "call_id": required(value, "call_id", read_str),
        "name": required(value, "name", read_str),
    }


def _read_message(value: dict[str, Any]) -> dict[str, Any]:
    role = required(value, "role", read_name(*_ROLES))
    error = "content should be a string or a list of content blocks"
    content = required(value, "content", lambda v: _read_blocks(v, _BLOCKS, error))
    return {"type": "message", "role": role, "content": content}


def _read_output(value: Any) -> list[dict[str, Any]]:
    error = "output should be a string or a list of output content parts"
    return _read_blocks(value, _OUTPUT_BLOCKS, error)


def _read_blocks(value: Any, names: Sequence[str], error: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    if not isinstance(value, list):
        raise BodyError(error)
    return [_read_block(item, names) for item in value]


def _read_block(value: Any, names: Sequence[str]) -> dict[str, Any]:
    fields = read_tag(value, "ResponsesContentBlock", names)
    match fields["type"]:
        case "input_text" | "output_text":
            return {"type": "input_text", "text": required(fields, "text", read_str)}
        case "input_image":
            detail = optional(fields, "detail", read_name("low", "high", "original", "auto"))
            return {
                "type": "input_image",
                "image_url": optional(fields, "image_url", read_str),
                "file_id": optional(fields, "file_id", read_str),
                "detail": detail or "high",
            }
    return {"type": "input_file"}


def _read_reasoning_text(value: Any) -> str:
    return required(read_map(value, "struct ResponsesReasoningContent"), "text", read_str)
