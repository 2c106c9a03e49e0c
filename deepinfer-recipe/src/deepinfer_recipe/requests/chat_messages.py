"""Messages of the Chat Completions protocol: what they become, and which may follow which."""

from __future__ import annotations

from typing import Any

from ..conversation import AssistantMessage, LatestReminderMessage, Message
from .chat_body import ChatBody, ChatMessage
from .content import ContentWriter, Part, join_texts
from .errors import bad_request
from .images import UNSUPPORTED_IMAGE, check_file, image_from_url
from .options import ConversionOptions, ModelVersion

_INSUFFICIENT = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'"
)


class MessageConverter:
    """Converts the messages in order, holding each run of tool results to its calls."""

    def __init__(self, body: ChatBody, version: ModelVersion, options: ConversionOptions) -> None:
        self._body = body
        self._has_images = version is ModelVersion.DeepseekV41Flash
        self._writer = ContentWriter(options.special_tokens)
        self._missing: set[str] = set()
        self._answered: set[str] = set()

    def convert(self) -> list[Message]:
        """Return the messages of the conversation; empty system messages are dropped."""
        messages: list[Message] = []
        for index, message in enumerate(self._body.messages):
            if message.role != "tool" and self._missing:
                raise self._insufficient()
            converted = self._convert_one(index, message)
            if message.role != "system" or converted.content:
                messages.append(converted)
        if self._missing:
            raise self._insufficient()
        return messages

    def _convert_one(self, index: int, message: ChatMessage) -> Message:
        if message.role == "latest_reminder":
            return LatestReminderMessage(str(message.content))
        if message.role == "assistant":
            return self._assistant(index, message)
        if message.role == "tool":
            self._answer(index, message.tool_call_id)
        parts = self._parts(index, message)
        if message.role == "tool":
            return self._writer.tool(parts, message.tool_call_id)
        return self._writer.system(parts) if message.role == "system" else self._writer.user(parts)

    def _assistant(self, index: int, message: ChatMessage) -> Message:
        if message.content is None and message.tool_calls is None:
            raise bad_request("Invalid assistant message: content or tool_calls must be set")
        parts = self._parts(index, message)
        calls = message.tool_calls
        if calls is not None:
            if not calls:
                raise bad_request(
                    f"Invalid 'messages[{index}].tool_calls': empty array. Expected an array with "
                    "minimum length 1, but got an empty array instead."
                )
            self._answered = set()
            for call in calls:
                if call.id in self._missing:
                    raise _duplicate(call.id, index)
                self._missing.add(call.id)
        return AssistantMessage(join_texts(parts), message.reasoning_content, calls, message.prefix)

    def _answer(self, index: int, call_id: str) -> None:
        if call_id in self._missing:
            self._missing.remove(call_id)
            self._answered.add(call_id)
        elif not self._missing:
            raise bad_request(
                "Messages with role 'tool' must be a response to a preceding message with "
                "'tool_calls'"
            )
        elif call_id in self._answered:
            raise _duplicate(call_id, index)
        else:
            raise bad_request(
                f"{_INSUFFICIENT}, The following tool_call_ids did not have response messages: "
                f"{call_id}"
            )

    def _insufficient(self) -> Exception:
        return bad_request(
            f"{_INSUFFICIENT}. (insufficient tool messages following tool_calls message)"
        )

    def _parts(self, index: int, message: ChatMessage) -> list[Part]:
        if message.content is None:
            return []
        if isinstance(message.content, str):
            return [message.content]
        if not self._has_images:
            return [block.get("text", UNSUPPORTED_IMAGE) for block in message.content]
        path = f".messages[{index}]"
        blocks = [
            check_file(block, prefix=f"{path}: ") if block["type"] == "file" else block
            for block in message.content
        ]
        return [self._part(path, message.role, block) for block in blocks]

    def _part(self, path: str, role: str, block: dict[str, Any]) -> Part:
        if block["type"] == "text":
            return str(block["text"])
        if role == "assistant":
            raise bad_request("Image in assistant message is not supported")
        return image_from_url(block["url"], block["detail"], prefix=f"{path}: ", path=path)


def _duplicate(call_id: str, index: int) -> Exception:
    return bad_request(f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]")
