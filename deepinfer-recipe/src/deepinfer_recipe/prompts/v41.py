"""The V4.1 prompt format: system messages in place, numeric effort, tools in the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ..conversation import Conversation, Message, SystemMessage, ToolDefinition
from ..jsontext import dumps_python
from ..specials import SpecialToken
from .dsml import Dialect, call_order, tool_line, write_calls, write_tools
from .encoding import BaseEncoding
from .pieces import PromptWriter
from .v4 import JSON_SCHEMA

DIALECT = Dialect(
    block=" calls", tag_prefix=" ", empty_body="\n", empty_list="\n", dumps=dumps_python
)
_EFFORTS = {None: 75, "low": 50, "high": 75, "xhigh": 75, "max": 100}


class DeepseekV41Encoding(BaseEncoding):
    """The V4.1 prompt encoding."""

    __slots__ = ()

    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        messages, hidden_prefix = _with_system_message(conversation)
        writer.special(SpecialToken.Bos)
        order: dict[str, int] = {}
        for turn, members in groupby(enumerate(messages), key=lambda item: _turn(item[1])):
            run = list(members)
            if turn == "reminder":
                writer.special(SpecialToken.LatestReminder)
                writer.content([run[0][1]])
            elif turn == "user":
                _write_user_turn(writer, [message for _, message in run], order)
            else:
                for index, message in run:
                    if isinstance(message, SystemMessage):
                        _write_system(writer, conversation, message, is_first=index == 0)
                    else:
                        _write_assistant(writer, conversation, message, message is hidden_prefix)
                        order = call_order(message.tool_calls) or order
        if not messages or not messages[-1].prefix:
            writer.special(SpecialToken.Assistant)
            thinking = conversation.thinking_mode
            writer.special(SpecialToken.ThinkingStart if thinking else SpecialToken.ThinkingEnd)
        if conversation.tool_choice == "required" and conversation.tools:
            writer.template(DIALECT.block_start)


def _turn(message: Message) -> str:
    if message.role == "latest_reminder":
        return "reminder"
    return "user" if message.role in ("user", "tool") else "other"


def _with_system_message(conversation: Conversation) -> tuple[list[Message], Message | None]:
    """Return the messages, begun by a system message where tools, a format or an effort need one.

    The second value is the continued message whose reasoning the format drops: one that stood
    first when only the effort asked for the system message.
    """
    messages = conversation.messages
    has_format = conversation.response_format in ("json_object", "json_schema")
    starts_with_system = bool(messages) and messages[0].role == "system"
    if (conversation.shows_tools or has_format) and not starts_with_system:
        messages.insert(0, SystemMessage(""))
    hidden = messages[0] if messages and messages[0].prefix else None
    if conversation.thinking_mode and messages and messages[0].role != "system":
        messages.insert(0, SystemMessage(""))
    return messages, hidden


def _write_system(
    writer: PromptWriter, conversation: Conversation, message: SystemMessage, *, is_first: bool
) -> None:
    writer.special(SpecialToken.System)
    if is_first and conversation.thinking_mode:
        effort = _EFFORTS[conversation.reasoning_effort]
        writer.text(
            f"Reasoning Effort: {effort} (range 1-100, the higher the value, "
            "the more thorough the reasoning)\n\n"
        )
    writer.content([message])
    if is_first and conversation.shows_tools:
        writer.text("\n\n")
        write_tools(writer, DIALECT, conversation.tools)
    if is_first and conversation.response_format == "json_object":
        writer.text(JSON_SCHEMA + '{"type": "json_object"}')
    elif is_first and conversation.response_format == "json_schema":
        writer.text(JSON_SCHEMA + dumps_python(conversation.response_schema))
    _write_updated_tools(writer, message.tools or [])


def _write_updated_tools(writer: PromptWriter, tools: Sequence[ToolDefinition]) -> None:
    if tools:
        lines = "\n".join(tool_line(DIALECT, tool) for tool in tools)
        writer.text("\n\n### Updated Tool Schemas\n\n" + lines)


def _write_user_turn(
    writer: PromptWriter, turn: Sequence[Message], order: Mapping[str, int]
) -> None:
    writer.special(SpecialToken.User)
    for index, message in enumerate(_in_call_order(turn, order)):
        if index:
            writer.text("\n\n")
        if message.role == "tool":
            writer.text("<tool_result>")
        writer.content([message])
        if message.role == "tool":
            writer.text("</tool_result>")


def _in_call_order(turn: Sequence[Message], order: Mapping[str, int]) -> list[Message]:
    """Sort the results by their calls, each into a place where a result stood."""
    ordered = list(turn)
    places = [i for i, message in enumerate(turn) if message.tool_call_id is not None]
    results = sorted((turn[i] for i in places), key=lambda m: order.get(m.tool_call_id or "", 0))
    for place, result in zip(places, results, strict=True):
        ordered[place] = result
    return ordered


def _write_assistant(
    writer: PromptWriter, conversation: Conversation, message: Message, hides_reasoning: bool
) -> None:
    writer.special(SpecialToken.Assistant)
    is_kept = conversation.shows_tools or (message.prefix and not hides_reasoning)
    if conversation.thinking_mode and is_kept:
        reasoning = message.reasoning_content or ""
        # A finished turn whose whole reasoning block would be the opening marker has none.
        if message.prefix or reasoning or writer.spells(SpecialToken.ThinkingEnd):
            writer.special(SpecialToken.ThinkingStart)
        writer.text(reasoning)
        if not message.prefix or message.content or message.tool_calls:
            writer.special(SpecialToken.ThinkingEnd)
    else:
        writer.special(SpecialToken.ThinkingEnd)
    writer.text(message.content)
    if message.tool_calls:
        write_calls(writer, DIALECT, message.tool_calls)
    if not message.prefix:
        writer.special(SpecialToken.Eos)
