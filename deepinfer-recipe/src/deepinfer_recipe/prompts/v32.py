"""The V3.2 prompt format: bare system text, tool results inside the assistant's turn.

The format has no marker for a turn of the model but the one behind each user message, and it
shows reasoning only after the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..conversation import Conversation, Message, SystemMessage, ToolCall
from ..jsontext import dumps_python
from ..specials import SpecialToken
from .dsml import Dialect, call_order, parse_arguments, tool_line
from .encoding import BaseEncoding
from .pieces import PromptWriter, compile_template

DIALECT = Dialect(
    block="function_calls", tag_prefix="", empty_body="", empty_list="", dumps=dumps_python
)
_TOOLS_HEAD = compile_template(
    """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{dsml}function_calls>" block like the following as part of \
your reply to the user:
<{dsml}function_calls>
<{dsml}invoke name="$FUNCTION_NAME">
<{dsml}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}parameter>
...
</{dsml}invoke>
<{dsml}invoke name="$FUNCTION_NAME2">
...
</{dsml}invoke>
</{dsml}function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists \
and objects should use JSON format. The "string" attribute should be set to "true" for string type \
parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider \
outputting a thinking block. Here is an example:
<{dsml}function_calls>
...
</{dsml}function_calls>
<function_results>
...
</function_results>
{thinking_start}...thinking about results{thinking_end}
Here are the functions available in JSONSchema format:
<functions>
"""
)
_RESPONSE_FORMAT = (
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
)


class DeepseekV32Encoding(BaseEncoding):
    """The V3.2 prompt encoding."""

    __slots__ = ()

    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        messages = _with_system_message(conversation)
        last_user = max((i for i, m in enumerate(messages) if _is_user(m)), default=-1)
        writer.special(SpecialToken.Bos)
        order: dict[str, int] = {}
        index = 0
        while index < len(messages):
            message = messages[index]
            shows_reasoning = conversation.thinking_mode and index >= last_user
            if message.role == "tool":
                end = index
                while end < len(messages) and messages[end].role == "tool":
                    end += 1
                _write_results(writer, messages[index:end], order)
                writer.text("\n\n")
                _write_thinking_marker(writer, shows_reasoning)
                index = end
                continue
            if isinstance(message, SystemMessage):
                _write_system(writer, conversation, message, is_first=index == 0)
            elif _is_user(message):
                writer.special(SpecialToken.User)
                writer.content([message])
                writer.special(SpecialToken.Assistant)
                _write_thinking_marker(writer, shows_reasoning)
            else:
                _write_assistant(writer, message, shows_reasoning)
                order = call_order(message.tool_calls) or order
            index += 1
        if not messages or not (_opens_turn(messages[-1]) or messages[-1].prefix):
            writer.special(SpecialToken.Assistant)
            _write_thinking_marker(writer, conversation.thinking_mode)
        if conversation.tool_choice == "required" and conversation.tools:
            writer.template(DIALECT.block_start)


def _is_user(message: Message) -> bool:
    return message.role in ("user", "latest_reminder")


def _opens_turn(message: Message) -> bool:
    return _is_user(message) or message.role == "tool"


def _write_thinking_marker(writer: PromptWriter, is_thinking: bool) -> None:
    writer.special(SpecialToken.ThinkingStart if is_thinking else SpecialToken.ThinkingEnd)


def _with_system_message(conversation: Conversation) -> list[Message]:
    messages = conversation.messages
    has_format = conversation.response_format in ("json_object", "json_schema")
    starts_with_system = bool(messages) and messages[0].role == "system"
    if (conversation.shows_tools or has_format) and not starts_with_system:
        messages.insert(0, SystemMessage(""))
    return messages


def _write_system(
    writer: PromptWriter, conversation: Conversation, message: SystemMessage, *, is_first: bool
) -> None:
    writer.content([message])
    if not is_first:
        return
    if conversation.shows_tools:
        writer.text("\n\n")
        writer.template(_TOOLS_HEAD)
        visible = [tool for tool in conversation.tools if not tool.defer_loading]
        writer.text("".join(tool_line(DIALECT, tool) + "\n" for tool in visible))
        writer.text("</functions>\n")
    if conversation.response_format == "json_object":
        writer.text(_RESPONSE_FORMAT + '{"type": "json_object"}')
    elif conversation.response_format == "json_schema":
        writer.text(_RESPONSE_FORMAT + dumps_python(conversation.response_schema))


def _write_results(
    writer: PromptWriter, results: Sequence[Message], order: Mapping[str, int]
) -> None:
    writer.text("\n\n<function_results>")
    for result in sorted(results, key=lambda m: order.get(m.tool_call_id or "", 0)):
        writer.text("\n<result>")
        writer.content([result])
        writer.text("</result>")
    writer.text("\n</function_results>")


def _write_assistant(writer: PromptWriter, message: Message, shows_reasoning: bool) -> None:
    if shows_reasoning:
        writer.text(message.reasoning_content or "")
        if not message.prefix or message.content or message.tool_calls:
            writer.special(SpecialToken.ThinkingEnd)
    writer.text(message.content)
    if message.tool_calls:
        _write_calls(writer, message.tool_calls)
    if not message.prefix:
        writer.special(SpecialToken.Eos)


def _write_calls(writer: PromptWriter, calls: Sequence[ToolCall]) -> None:
    """Append the calls; unlike in later formats, lines are joined and a call may be empty."""
    writer.template(DIALECT.block_start)
    for call in calls:
        writer.template(compile_template("<{dsml}invoke name="))
        writer.text(f'"{call.name}">\n')
        for index, (name, value) in enumerate(parse_arguments(call.arguments).items()):
            is_string = isinstance(value, str)
            writer.text("\n" if index else "")
            writer.template(compile_template("<{dsml}parameter name="))
            writer.text(f'"{name}" string="{"true" if is_string else "false"}">')
            writer.text(value if is_string else dumps_python(value))
            writer.template(compile_template("</{dsml}parameter>"))
        writer.template(compile_template("\n</{dsml}invoke>\n"))
    writer.template(DIALECT.block_end)
