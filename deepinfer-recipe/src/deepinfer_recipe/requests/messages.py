"""Conversion of Anthropic Messages requests. The order of the checks is part of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..conversation import Conversation, SystemMessage, ToolDefinition
from ..replies.messages import MessagesChunkGenerator
from .content import SEPARATOR, keep_known_tools
from .converted import ConversationRequest, InferenceOptions
from .errors import bad_request
from .history import parsing_options, settle_reasoning
from .messages_blocks import SERVER_TOOLS, MessageConverter
from .messages_body import MessagesBody, read_messages_body
from .options import ConversionOptions, ModelVersion, WebSearchBehavior
from .protocol import ProtocolRequest, RequestBody
from .settings import (
    check_max_tokens,
    check_stop,
    resolve_model,
    resolve_temperature,
    resolve_thinking,
    resolve_top_p,
    upper_bound,
)
from .tools import (
    Choice,
    check_choice,
    check_name,
    check_tools,
    keep_chosen,
    output_constraint,
    unknown_choice,
)


class MessagesRequest(ProtocolRequest[MessagesBody]):
    """A Messages request. Conversion consumes it, even a failed one."""

    def __init__(self, body: RequestBody) -> None:
        """Read a request body.

        Raises:
            ValueError: the body is no JSON, or no request.
        """
        super().__init__(body, read_messages_body)

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """Convert the request.

        Raises:
            ConversionError: the request breaks a rule of the protocol.
            RuntimeError: the request has been consumed.
        """
        return _convert(self._take(options), options)

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> MessagesChunkGenerator:
        """Return the generator of the events that answer a request."""
        return MessagesChunkGenerator(id, model, request.conversation.thinking_mode)


def _convert(body: MessagesBody, options: ConversionOptions) -> ConversationRequest:
    version = resolve_model(body.model, options)
    declared = _declared_tools(body, version, options)
    thinking, effort = resolve_thinking(body.thinking, body.effort, options)
    messages = MessageConverter(declared, version, options).convert(body.messages)
    messages = settle_reasoning(
        messages,
        thinking=thinking,
        declares_tools=bool(body.tools),
        behavior=options.reasoning_content_behavior,
        field="content[].thinking",
    )
    if not body.messages:
        raise bad_request("messages: at least one message is required")
    tools = check_tools(declared, body.tool_choice)
    wish = _wish(body, declared)
    choice = check_choice(wish, declared, thinking=thinking)
    tools = keep_chosen(tools, wish)
    messages = keep_known_tools(messages, tools)
    if body.system is not None:
        text = body.system if isinstance(body.system, str) else SEPARATOR.join(body.system)
        messages.insert(0, SystemMessage(text))
    stop = check_stop(body.stop_sequences)
    temperature = resolve_temperature(body.temperature, thinking=thinking)
    top_p = resolve_top_p(body.top_p, version, thinking=thinking, has_tools=bool(tools))
    bound = upper_bound(options, thinking=thinking)
    wanted = None if body.max_tokens is None else min(body.max_tokens, bound)
    conversation = Conversation(
        messages,
        thinking_mode=thinking,
        tools=tools,
        tool_choice=choice,
        reasoning_effort=effort,
    )
    inference = InferenceOptions(
        max_tokens=check_max_tokens(wanted, bound),
        temperature=temperature,
        top_p=top_p,
        output_constraint=output_constraint(conversation),
    )
    return ConversationRequest(
        conversation,
        version,
        inference_options=inference,
        parsing_options=parsing_options(conversation, stop, options.special_tokens),
        stream=body.stream,
    )


def _wish(body: MessagesBody, declared: Sequence[ToolDefinition]) -> Choice:
    """Return the choice of a tool; one of what is dropped is none.

    Raises:
        ConversionError: it names what is not there.
    """
    wish = body.tool_choice
    dropped = [tool.server_name for tool in body.tools if tool.client is None]
    if dropped and not declared and wish.function not in (None, *dropped):
        raise unknown_choice(str(wish.function))
    return replace(wish, mode="auto", function=None) if wish.function in dropped else wish


def _declared_tools(
    body: MessagesBody, version: ModelVersion, options: ConversionOptions
) -> list[ToolDefinition]:
    """Return the tools of the client; V4 knows no deferred ones."""
    drops = options.messages_web_search is WebSearchBehavior.Drop
    declared: list[ToolDefinition] = []
    keeps_deferred = version is ModelVersion.DeepseekV41Flash
    for index, tool in enumerate(body.tools):
        if tool.client is None:
            if drops and tool.server_type.startswith("web_search"):
                continue
            raise bad_request(f"tools[{index}]: {SERVER_TOOLS}")
        check_name(f"tools[{index}].name", tool.client.name)
        deferred = tool.client.defer_loading and keeps_deferred
        declared.append(replace(tool.client, defer_loading=deferred))
    if declared and all(tool.defer_loading for tool in declared):
        raise bad_request(
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred."
        )
    return declared
