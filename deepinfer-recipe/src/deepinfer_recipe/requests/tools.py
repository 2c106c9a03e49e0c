"""Rules for declared tools: names, schemas, the choice, strictness, the output constraint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..conversation import Conversation, ToolChoice, ToolDefinition
from ..jsontext import dumps_compact
from .converted import OutputConstraint
from .errors import bad_request
from .json_draft import SchemaError
from .json_schema import check_schema
from .strict_schema import StrictSchemaError, normalize

_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_MAX_NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request says of the tool to call: a mode, or the name of a function."""

    mode: ToolChoice = "auto"
    function: str | None = None


def check_name(path: str, name: str) -> None:
    """Check the name of a tool.

    Raises:
        ConversionError: it is empty, too long, or has other characters than allowed.
    """
    if not name:
        raise bad_request(
            f"Invalid '{path}': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        )
    if len(name.encode()) > _MAX_NAME_LENGTH:
        raise bad_request(
            f"Invalid '{path}': string too long. Expected a string with maximum length "
            f"{_MAX_NAME_LENGTH}, but got a string with length {len(name.encode())} instead."
        )
    if _NAME.match(name) is None:
        raise bad_request(
            f"Invalid '{path}': string does not match pattern. Expected a string that matches "
            "the pattern '^[a-zA-Z0-9_-]+$'."
        )


def check_choice(choice: Choice, tools: Sequence[ToolDefinition], *, thinking: bool) -> ToolChoice:
    """Return the mode of a choice: a choice without tools is `auto`, a named one `required`.

    Raises:
        ConversionError: the name is unknown, or thinking mode forbids the choice.
    """
    if choice.mode != "none" and not tools:
        return "auto"
    if choice.function is not None and choice.function not in {tool.name for tool in tools}:
        raise unknown_choice(choice.function)
    if thinking and (choice.function is not None or choice.mode == "required"):
        raise bad_request("Thinking mode does not support this tool_choice")
    return "required" if choice.function is not None else choice.mode


def unknown_choice(name: str) -> Exception:
    """Return the error for a choice of a tool that is not declared."""
    return bad_request(
        f"Invalid value for 'tool_call': no function named '{name}' "
        "was specified in the 'tools' parameter."
    )


def check_tools(
    tools: Sequence[ToolDefinition], choice: Choice, *, checked: Iterable[int] | None = None
) -> list[ToolDefinition]:
    """Return the tools with checked and, where strict, normalized schemas; none for `none`.

    Args:
        checked: indices of the tools whose parameters the request gave; all if None.

    Raises:
        ConversionError: a schema is invalid, or two tools have one name.
    """
    if choice.mode == "none":
        return []
    indices = range(len(tools)) if checked is None else set(checked)
    finished: list[ToolDefinition] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise bad_request("Tool names must be unique.")
        names.add(tool.name)
        finished.append(_with_parameters(tool, is_given=index in indices))
    return finished


def keep_chosen(tools: Sequence[ToolDefinition], choice: Choice) -> list[ToolDefinition]:
    """Return the tools that a choice leaves: one if it names one."""
    return [tool for tool in tools if choice.function in (None, tool.name)]


def check_strict(tools: Sequence[ToolDefinition], *, has_response_format: bool) -> None:
    """Check that strict tools are not mixed with others or with a response format.

    Raises:
        ConversionError: they are.
    """
    num_strict = sum(bool(tool.strict) for tool in tools)
    if 0 < num_strict < len(tools):
        raise bad_request("Cannot use strict tool with non-strict tool in the same request")
    if num_strict and has_response_format:
        raise bad_request("response_format should not be used with tools")


def output_constraint(
    conversation: Conversation, schema: Any | None = None
) -> OutputConstraint | None:
    """Return the constraint on the output of a conversation.

    Args:
        schema: the response schema in the form for constrained decoding; None for the same as in
            the conversation.
    """
    if conversation.shows_tools:
        required = conversation.tool_choice == "required"
        kind = "tool_call_required" if required else "tool_call"
        return OutputConstraint(kind, dumps_compact([_listed(t) for t in conversation.tools]))
    match conversation.response_format:
        case "json_object":
            return OutputConstraint("json", "")
        case "json_schema":
            chosen = conversation.response_schema if schema is None else schema
            return OutputConstraint("json", dumps_compact(chosen))
        case "regex":
            return OutputConstraint("regex", conversation.response_regex or "")
    return None


def _listed(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    deferred = {"defer_loading": True} if tool.defer_loading else {}
    return {"type": "function", "function": function, **deferred}


def _with_parameters(tool: ToolDefinition, *, is_given: bool) -> ToolDefinition:
    if tool.strict:
        parameters = tool.parameters if is_given else {"type": "object"}
        return replace(tool, parameters=_normalize(tool.name, parameters))
    if not is_given:
        return replace(tool, parameters={})
    _check_schema(tool.name, tool.parameters)
    return tool


def _normalize(name: str, parameters: Any) -> Any:
    try:
        return normalize(
            parameters,
            allows_empty_root=True,
            root_error="The top level of the function parameters schema must be an object.",
        )
    except StrictSchemaError as error:
        prefix = "Invalid tool parameters schema : " if error.is_shape else ""
        raise bad_request(f"{prefix}{error}") from None


def _check_schema(name: str, parameters: Any) -> None:
    try:
        check_schema(parameters)
    except SchemaError as error:
        raise bad_request(f"Invalid schema for function '{name}': {error}") from None
    kind = parameters.get("type") if isinstance(parameters, dict) else None
    if kind != "object":
        raise bad_request(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of "
            f"'type: \"object\"', got 'type: {dumps_compact(kind)}'."
        )
