"""The V4 prompt format: system text in front, DSML tool calls, effort as a preamble."""

from __future__ import annotations

from collections.abc import Sequence

from ..conversation import Conversation, Message, SystemMessage, UserMessage
from ..jsontext import dumps_spaced
from ..specials import SpecialToken
from .dsml import Dialect, write_calls, write_tools
from .encoding import BaseEncoding
from .pieces import PromptWriter

DIALECT = Dialect(
    block="tool_calls", tag_prefix="", empty_body="", empty_list="", dumps=dumps_spaced
)

_EFFORT_HIGH = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and \
adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""
_EFFORT_MAX = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain \
to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and \
are certain that no assumption remains unchecked and no error remains undiscovered.

"""
_EFFORTS = {
    None: _EFFORT_HIGH,
    "low": "",
    "high": _EFFORT_HIGH,
    "xhigh": _EFFORT_HIGH,
    "max": _EFFORT_MAX,
}

_JSON_OBJECT = (
    "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\n"
    "Reply with JSON object ONLY."
)
JSON_SCHEMA = (
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
)


class DeepseekV4Encoding(BaseEncoding):
    """The V4 prompt encoding."""

    __slots__ = ()

    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        writer.special(SpecialToken.Bos)
        if conversation.thinking_mode:
            writer.text(_EFFORTS[conversation.reasoning_effort])
        _write_head(writer, conversation)
        messages = _in_prompt_order(conversation.messages)
        previous: Message | None = None
        for index, message in enumerate(messages):
            is_last = index == len(messages) - 1
            _write_message(writer, conversation, message, previous, is_last)
            previous = message
        if previous is None or not previous.prefix:
            writer.special(SpecialToken.Assistant)
            thinking = conversation.thinking_mode
            writer.special(SpecialToken.ThinkingStart if thinking else SpecialToken.ThinkingEnd)
        if conversation.tool_choice == "required" and conversation.tools:
            writer.template(DIALECT.block_start)


def _write_head(writer: PromptWriter, conversation: Conversation) -> None:
    systems = (m for m in conversation.messages if isinstance(m, SystemMessage))
    writer.content(message for message in systems if message.content)
    if conversation.shows_tools:
        writer.text("\n\n")
        write_tools(writer, DIALECT, conversation.tools)
    if conversation.response_format == "json_object":
        writer.text(_JSON_OBJECT)
    elif conversation.response_format == "json_schema":
        writer.text(JSON_SCHEMA + dumps_spaced(conversation.response_schema))


def _write_message(
    writer: PromptWriter,
    conversation: Conversation,
    message: Message,
    previous: Message | None,
    is_last: bool,
) -> None:
    if message.role == "assistant":
        _write_assistant(writer, conversation, message, is_last)
        return
    if message.role == "latest_reminder":
        writer.special(SpecialToken.LatestReminder)
        writer.content([message])
        return
    role_before = previous.role if previous is not None else None
    if role_before not in ("user", "tool") or (message.role, role_before) == ("tool", "user"):
        writer.special(SpecialToken.User)
    else:
        writer.text("\n\n")
    if message.role == "tool":
        writer.text("<tool_result>")
    writer.content(message.parts if isinstance(message, _MergedUser) else [message])
    if message.role == "tool":
        writer.text("</tool_result>")


def _write_assistant(
    writer: PromptWriter, conversation: Conversation, message: Message, is_last: bool
) -> None:
    writer.special(SpecialToken.Assistant)
    reasoning = message.reasoning_content
    if reasoning is not None and (message.prefix or conversation.shows_tools):
        writer.special(SpecialToken.ThinkingStart)
        writer.text(reasoning)
    if not message.prefix or message.content or not conversation.thinking_mode:
        writer.special(SpecialToken.ThinkingEnd)
    writer.text(message.content)
    if message.tool_calls is not None:
        write_calls(writer, DIALECT, sorted(message.tool_calls, key=lambda call: call.id))
    if not (message.prefix and is_last):
        writer.special(SpecialToken.Eos)


class _MergedUser(UserMessage):
    """Neighbouring user messages, shown as one turn."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        super().__init__("")
        self.parts: list[Message] = []


def _in_prompt_order(messages: Sequence[Message]) -> list[Message]:
    """Merge neighbouring users and sort the results after each assistant's calls."""
    merged: list[Message] = []
    for message in messages:
        if message.role == "system":
            continue
        if message.role == "user":
            last = merged[-1] if merged else None
            if not isinstance(last, _MergedUser):
                last = _MergedUser()
                merged.append(last)
            last.parts.append(message)
        else:
            merged.append(message)
    # The windows are those of the order as given, even where an earlier sort moves messages.
    windows = [
        (index + 1, index + 1 + len(message.tool_calls))
        for index, message in enumerate(merged)
        if message.tool_calls
    ]
    for start, stop in windows:
        if stop <= len(merged):
            merged[start:stop] = sorted(merged[start:stop], key=_result_rank)
    return merged


def _result_rank(message: Message) -> tuple[int, str]:
    if message.role != "tool":
        return (2, "")
    return (0, "") if message.tool_call_id is None else (1, message.tool_call_id)
