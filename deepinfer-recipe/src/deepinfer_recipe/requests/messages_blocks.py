"""Content blocks of the Messages protocol: which may stand where, and what they become."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from operator import not_
from typing import Any

from ..conversation import (
    AssistantMessage,
    DataUrlImageSource,
    Message,
    ToolCall,
    ToolDefinition,
    UrlImageSource,
)
from ..jsontext import dumps_spaced
from .content import SEPARATOR, ContentWriter, Part, join_texts
from .errors import bad_request
from .images import NO_FILE_ID, UNSUPPORTED_IMAGE
from .messages_body import Blocks, MessagesMessage
from .options import ConversionOptions, ModelVersion, WebSearchBehavior

SERVER_TOOLS = "server tools are not supported"
_SERVER_BLOCKS = ("server_tool_use", "web_search_tool_result")
_PLACES = {
    "tool_use": "assistant", "tool_result": "user", "tool_addition": "system",
    "server_tool_use": "assistant", "web_search_tool_result": "assistant",
}  # fmt: skip


class MessageConverter:
    """Converts the messages in order, holding results to the calls of the message before."""

    def __init__(
        self, tools: Sequence[ToolDefinition], version: ModelVersion, options: ConversionOptions
    ) -> None:
        self._tools = {tool.name: tool for tool in reversed(tools)}
        self._is_v41 = version is ModelVersion.DeepseekV41Flash
        self._drops_server_blocks = options.messages_web_search is WebSearchBehavior.Drop
        self._writer = ContentWriter(options.special_tokens)
        self._missing: dict[str, None] = {}

    def convert(self, messages: Sequence[MessagesMessage]) -> list[Message]:
        """Return the messages of the conversation.

        Raises:
            ConversionError: a block stands where it may not, or calls and results don't match.
        """
        converted: list[Message] = []
        for index, message in enumerate(messages):
            content = message.content
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if not blocks and message.role == "assistant":
                self._require_answers(f"messages.{index}: ")
            if not blocks and message.role != "system":
                raise bad_request(f"messages.{index}: all messages must have non-empty content")
            missing_before = bool(self._missing)
            match message.role:
                case "assistant":
                    converted.append(self._assistant(index, blocks))
                case "user":
                    converted.extend(self._user(index, blocks))
                case _:
                    converted.extend(self._system(index, blocks))
            if self._missing and missing_before:
                is_user = message.role == "user"
                raise self._unanswered(
                    f"messages.{index - 1}:" if is_user else f"messages.{index}: "
                )
        if self._missing:
            raise self._unanswered(f"messages.{len(messages) - 1}:")
        return converted

    def _assistant(self, index: int, blocks: Blocks) -> Message:
        parts: list[Part] = []
        thoughts: list[str] = []
        calls: dict[str, ToolCall] = {}
        for position, block in self._placed(index, "assistant", blocks):
            match block["type"]:
                case "thinking":
                    thoughts.append(block["thinking"])
                case "tool_use":
                    if block["id"] in calls:
                        raise bad_request(
                            f"messages.{index}.content.{position}: `tool_use` ids must be unique"
                        )
                    if not calls:
                        self._require_answers(f"messages.{index}: ")
                    arguments = dumps_spaced(block["input"])
                    calls[block["id"]] = ToolCall(block["id"], block["name"], arguments)
                    self._missing[block["id"]] = None
                case _:
                    if calls:
                        self._require_answers(f"messages.{index}.{position}: ")
                    parts.append(self._part(block, f"messages.{index}.content[{position}]"))
                    if block["type"] == "image" and self._is_v41:
                        raise bad_request("Image in assistant message is unsupported")
        reasoning = SEPARATOR.join(thoughts) if thoughts else None
        # No separator is put behind nothing.
        text = SEPARATOR.join(dropwhile(not_, map(str, parts)))
        return AssistantMessage(text, reasoning, list(calls.values()) or None)

    def _user(self, index: int, blocks: Blocks) -> Iterable[Message]:
        answered: set[str] = set()
        messages: list[Message] = []
        added: list[ToolDefinition] = []
        for position, block in self._placed(index, "user", blocks):
            if block["type"] == "tool_result":
                place = f"messages.{index}.content.{position}"
                self._answer(block["id"], place, answered)
                parts = self._result_parts(block["content"], place, added)
                messages.append(self._writer.tool(parts, block["id"]))
            else:
                self._require_answers(f"messages.{index}: ")
                part = self._part(block, f"messages.{index}.content[{position}]")
                messages.append(self._writer.user([part]))
        if added and self._is_v41:
            messages.append(self._writer.system([], added))
        return messages

    def _system(self, index: int, blocks: Blocks) -> Iterable[Message]:
        parts: list[Part] = []
        added: list[ToolDefinition] = []
        for position, block in self._placed(index, "system", blocks):
            if block["type"] == "tool_addition":
                if block["name"] not in self._tools:
                    raise bad_request(
                        f"messages.{index}.content.{position}: `tool_addition` references unknown "
                        f"tool '{block['name']}'"
                    )
                added.append(self._tools[block["name"]])
            else:
                path = f"messages.{index}"
                parts.append(self._part(block, path, f"{path}.content[{position}]"))
        if self._is_v41:
            return [self._writer.system(parts, added or None)]
        text = join_texts(parts)
        reminder = f"<system-reminder>\n{text}\n</system-reminder>"
        return [self._writer.user([reminder])] if text else []

    def _placed(
        self, index: int, role: str, blocks: Blocks
    ) -> Iterable[tuple[int, dict[str, Any]]]:
        """Yield the blocks with their positions; each must be allowed in the role.

        That the calls before are answered comes first, except in a message of the user.
        """
        is_before_calls = role == "assistant"
        for position, block in enumerate(blocks):
            kind = block["type"]
            if role == "system" or (is_before_calls and kind not in ("thinking", "tool_use")):
                self._require_answers(f"messages.{index}: ")
            is_before_calls = is_before_calls and kind != "tool_use"
            if kind == "thinking" and role != "assistant":
                raise bad_request(
                    f"messages.{index}.content: thinking blocks may only be in `assistant` messages"
                )
            if _PLACES.get(kind, role) != role:
                shown = "tool_use" if kind == "server_tool_use" else kind
                raise bad_request(
                    f"messages.{index}: `{shown}` blocks can only be in `{_PLACES[kind]}` messages"
                )
            if kind in _SERVER_BLOCKS and not self._drops_server_blocks:
                raise bad_request(f"Unsupported content block: {SERVER_TOOLS}")
            if kind not in _SERVER_BLOCKS:
                yield position, block

    def _answer(self, call_id: str, place: str, answered: set[str]) -> None:
        if call_id in answered:
            raise bad_request(
                f"{place}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {call_id}"
            )
        if call_id not in self._missing:
            raise bad_request(
                f"unexpected `{place}: tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message."
            )
        del self._missing[call_id]
        answered.add(call_id)

    def _require_answers(self, prefix: str) -> None:
        if self._missing:
            raise self._unanswered(prefix)

    def _unanswered(self, prefix: str) -> Exception:
        ids = ", ".join(sorted(self._missing))
        return bad_request(
            f"{prefix}`tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{ids}. Each `tool_use` block must have a corresponding `tool_result` block in the "
            "next message."
        )

    def _result_parts(self, blocks: Blocks, place: str, added: list[ToolDefinition]) -> list[Part]:
        names = [block["name"] for block in blocks if block["type"] == "tool_reference"]
        for name in names:
            if name not in self._tools:
                raise bad_request(f"{place}: tool reference '{name}' not found in available tools")
            added.append(self._tools[name])
        path = f"{place}.tool_result"
        return [
            block["name"]
            if block["type"] == "tool_reference"
            else self._part(block, path, f"{path}.content[{position}]")
            for position, block in enumerate(blocks)
        ]

    def _part(self, block: dict[str, Any], path: str, place: str | None = None) -> Part:
        """Return the text or image of a block.

        Args:
            path: request location that an image source records.
            place: location that an error names, if another.
        """
        if block["type"] == "text":
            return str(block["text"])
        if block["type"] == "document":
            return f"[Unsupported document type: {block['media_type']}]"
        if not self._is_v41:
            return UNSUPPORTED_IMAGE
        source, place = block["source"], path if place is None else place
        if source["type"] == "file":
            raise bad_request(f"{place}: {NO_FILE_ID}")
        if source["type"] == "url":
            url: str = source["url"]
            if url[:4].lower() != "http":
                raise bad_request(f'{place}: invalid url: "{url}"')
            return UrlImageSource(url, path=path)
        data = _canonical_base64(source["data"])
        if data is None:
            raise bad_request(f"{place}: base64 decode error")
        media_type = source["media_type"].replace("/jpg", "/jpeg")
        return DataUrlImageSource(f"data:{media_type};base64,{data}", path=path)


def _canonical_base64(text: str) -> str | None:
    """Return base64 with its proper padding, or None. Padding of another length is no fault."""
    bare = text.rstrip("=")
    if len(bare) % 4 and bare == text:
        return None
    padded = bare + "=" * (-len(bare) % 4)
    try:
        raw = base64.b64decode(padded, validate=True)
    except ValueError:
        return None
    return padded if base64.b64encode(raw).decode() == padded else None
