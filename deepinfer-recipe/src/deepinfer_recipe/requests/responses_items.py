"""Input items of the Responses protocol: runs of assistant items and their outputs to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import AssistantMessage, Message, ToolCall, ToolDefinition
from ..jsontext import dumps_compact
from .content import SEPARATOR, ContentWriter, Part, join_texts
from .errors import bad_request
from .images import NO_FILE_ID, UNSUPPORTED_IMAGE, image_from_url
from .options import ConversionOptions, ModelVersion
from .responses_tools import (
    TOOL_SEARCH,
    flatten_namespaces,
    qualified_name,
)

_SEARCH_ITEMS = ("tool_search_call", "tool_search_output")


class ItemConverter:
    """Converts items in order. Neighbouring assistant items make one message."""

    def __init__(
        self,
        version: ModelVersion,
        options: ConversionOptions,
        found: Mapping[int, Sequence[ToolDefinition]],
    ) -> None:
        """Build a converter; `found` has the tools of each search output by its index."""
        self._version = version
        self._is_v41 = version is ModelVersion.DeepseekV41Flash
        self._found_by_index = found
        self._writer = ContentWriter(options.special_tokens)
        self._messages: list[Message] = []
        self._texts: list[str] | None = None
        self._thoughts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._call_ids: set[str] = set()
        self._answered_ids: set[str] = set()
        self._results: dict[str, Message] = {}
        self._found: list[Message] = []

    def convert(self, items: Sequence[dict[str, Any]]) -> list[Message]:
        """Return the messages of the conversation.

        Raises:
            ConversionError: calls and outputs don't match, or an image or a tool is not accepted.
        """
        for index, item in enumerate(items):
            if item["type"] in _SEARCH_ITEMS and not self._is_v41:
                continue
            match item["type"]:
                case "message":
                    self._message(index, item)
                case "reasoning":
                    self._reason("\n".join(item["texts"]))
                case "function_call" | "custom_tool_call" | "tool_search_call":
                    self._call(index, item)
                case "function_call_output" | "custom_tool_call_output" | "tool_search_output":
                    self._output(index, item)
        self._end_run()
        return self._messages

    def _reason(self, text: str) -> None:
        if self._calls or (text and self._texts):
            self._end_run()
        if text:
            self._thoughts.append(text)

    def _message(self, index: int, item: dict[str, Any]) -> None:
        role = item["role"]
        if role != "assistant" or self._calls:
            self._end_run()
        self._check_images(index, "content", item["content"])
        parts = [self._part(index, role, block) for block in item["content"]]
        if role == "assistant":
            self._texts = self._texts or []
            if text := join_texts(parts):
                self._texts.append(text)
        elif role == "system" or (role == "developer" and self._is_v41):
            self._messages.append(self._writer.system(parts))
        else:
            self._messages.append(self._writer.user(parts))

    def _call(self, index: int, item: dict[str, Any]) -> None:
        call_id: str = item["call_id"]
        _check_call_id(index, call_id)
        if self._calls and len(self._results) == len(self._calls):
            self._end_run()
        if call_id in self._call_ids:
            raise bad_request(f"Duplicate 'call_id': {call_id}.")
        self._call_ids.add(call_id)
        match item["type"]:
            case "function_call":
                name, arguments = item["name"], item["arguments"]
                if item["namespace"] is not None:
                    name = qualified_name(item["namespace"], name, self._version)
            case "custom_tool_call":
                name, arguments = item["name"], dumps_compact({"input": item["input"]})
            case _:
                name, arguments = TOOL_SEARCH, dumps_compact(item["arguments"])
        self._calls[call_id] = ToolCall(call_id, name, arguments)

    def _output(self, index: int, item: dict[str, Any]) -> None:
        # Only the output of a function is read before its call is looked for.
        is_function = item["type"] == "function_call_output"
        parts = self._output_parts(index, item) if is_function else []
        call_id: str | None = item["call_id"]
        if call_id is None:
            self._end_run()
            self._messages.append(self._writer.tool(parts, None))
            return
        if call_id in self._answered_ids:
            raise bad_request(f"Duplicate tool output for call_id: {call_id}.")
        _check_call_id(index, call_id)
        if call_id not in self._calls:
            raise bad_request(f"No tool call found for tool output with call_id {call_id}.")
        if not is_function:
            parts = self._output_parts(index, item)
        found = self._found_by_index.get(index)
        if found:
            self._found.append(self._writer.system([], found))
        self._answered_ids.add(call_id)
        self._results[call_id] = self._writer.tool(parts, call_id)

    def _output_parts(self, index: int, item: dict[str, Any]) -> list[Part]:
        if item["type"] == "tool_search_output":
            return [_search_result(index, item["tools"])]
        self._check_images(index, "output", item["output"])
        return [self._part(index, "tool", block) for block in item["output"]]

    def _end_run(self) -> None:
        """Emit the assistant message, its outputs in the order of call ids, and found tools."""
        for call_id in self._calls:
            if call_id not in self._results:
                raise bad_request(f"No tool output found for tool call {call_id}.")
        ids = sorted(self._calls)
        if self._texts is not None or self._thoughts or self._calls:
            text, reasoning = SEPARATOR.join(self._texts or ()), "\n".join(self._thoughts)
            calls = [self._calls[call_id] for call_id in ids]
            self._messages.append(AssistantMessage(text, reasoning or None, calls or None))
        self._messages += [self._results[call_id] for call_id in ids]
        self._messages += self._found
        self._texts, self._thoughts = None, []
        self._calls, self._results, self._found = {}, {}, []

    def _check_images(self, index: int, place: str, blocks: Sequence[dict[str, Any]]) -> None:
        """Check that image blocks are whole; `place` names their list in errors."""
        for position, block in enumerate(blocks):
            if self._is_v41 and block["type"] == "input_image":
                _check_image(f"input[{index}].{place}[{position}]: ", block)

    def _part(self, index: int, role: str, block: dict[str, Any]) -> Part:
        if block["type"] == "input_text":
            return str(block["text"])
        if block["type"] == "input_file":
            return "[Unsupported Document]"
        if not self._is_v41:
            return UNSUPPORTED_IMAGE
        path = f"input[{index}]"
        if role == "assistant":
            raise bad_request(f"{path}: Image in assistant message is unsupported")
        return image_from_url(block["image_url"], block["detail"], prefix=f"{path}: ", path=path)


def _check_image(prefix: str, block: dict[str, Any]) -> None:
    if block["image_url"] and block["file_id"] is not None:
        raise bad_request(f"{prefix}input_image cannot have both image_url and file_id")
    if block["file_id"] is not None:
        raise bad_request(prefix + NO_FILE_ID)
    if not block["image_url"]:
        raise bad_request(f"{prefix}input_image must have image_url or file_id")


def _search_result(index: int, tools: Sequence[dict[str, Any]]) -> str:
    if any(tool["type"] == "unsupported" for tool in tools):
        raise bad_request(
            f"input[{index}]: the enum variant ResponsesTool::Unsupported cannot be serialized"
        )
    return dumps_compact(list(flatten_namespaces(tools)))


def _check_call_id(index: int, call_id: str) -> None:
    if not call_id:
        raise bad_request(
            f"Invalid 'input[{index}].call_id': empty string. Expected a string with minimum "
            "length 1, but got an empty string instead."
        )
