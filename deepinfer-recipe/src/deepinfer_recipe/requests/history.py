"""Rules for reasoning in the history, and where parsing starts after it."""

from __future__ import annotations

from collections.abc import Sequence

from ..conversation import AssistantMessage, Conversation, Message
from ..parsing import ParsingOptions, ThinkingInitialStage
from ..specials import SpecialTokens
from .errors import bad_request
from .options import ReasoningContentBehavior


def settle_reasoning(
    messages: Sequence[Message],
    *,
    thinking: bool,
    declares_tools: bool,
    behavior: ReasoningContentBehavior,
    field: str,
) -> list[Message]:
    """Return the messages with reasoning removed, filled with "", or required.

    Args:
        field: name of the reasoning field in the error message.

    Raises:
        ConversionError: reasoning that must be passed back is missing.
    """
    last_user = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    settled: list[Message] = []
    for index, message in enumerate(messages):
        if message.role != "assistant":
            settled.append(message)
            continue
        is_missing = message.reasoning_content is None
        is_needed = index > last_user and (declares_tools or bool(message.tool_calls))
        if thinking and is_missing and is_needed and behavior is ReasoningContentBehavior.Reject:
            raise bad_request(f"The `{field}` in the thinking mode must be passed back to the API.")
        reasoning = (message.reasoning_content or "") if thinking else None
        settled.append(
            AssistantMessage(message.content, reasoning, message.tool_calls, message.prefix)
        )
    return settled


def parsing_options(
    conversation: Conversation, stop: list[str], special_tokens: SpecialTokens
) -> ParsingOptions:
    """Return how to parse the answer to a conversation."""
    return ParsingOptions(
        parse_tool_calls=conversation.shows_tools,
        starts_in_tool_calls=conversation.shows_tools and conversation.tool_choice == "required",
        parse_json_output=conversation.response_format == "json_object",
        thinking_initial_stage=_initial_stage(conversation),
        stop_sequences=stop,
        special_tokens=special_tokens,
    )


def _initial_stage(conversation: Conversation) -> ThinkingInitialStage | None:
    if not conversation.thinking_mode:
        return None
    messages = conversation.messages
    if not messages or not messages[-1].prefix:
        return ThinkingInitialStage.ReasoningStart
    if messages[-1].content:
        return ThinkingInitialStage.ContentContinuation
    if messages[-1].reasoning_content:
        return ThinkingInitialStage.ReasoningContinuation
    return ThinkingInitialStage.ReasoningStart
