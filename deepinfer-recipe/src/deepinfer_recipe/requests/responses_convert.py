"""Conversion of Responses requests. The order of the checks is part of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..conversation import Conversation, Message, SystemMessage, ToolDefinition, UserMessage
from .converted import ConversationRequest, InferenceOptions
from .errors import bad_request
from .history import parsing_options, settle_reasoning
from .options import ConversionOptions, ModelVersion, WebSearchBehavior
from .response_format import check_response_schema
from .responses_body import ResponsesBody
from .responses_items import ItemConverter
from .responses_tools import SERVER_TOOLS, DeclaredTools, declare_tools
from .settings import (
    check_max_tokens,
    check_top_logprobs,
    contains_json_word,
    resolve_model,
    resolve_temperature,
    resolve_thinking,
    resolve_top_p,
    upper_bound,
)
from .tools import check_choice, check_strict, check_tools, keep_chosen, output_constraint


def convert_responses(body: ResponsesBody, options: ConversionOptions) -> ConversationRequest:
    """Convert a request body.

    Raises:
        ConversionError: the request breaks a rule of the protocol.
    """
    version = resolve_model(body.model, options)
    declared = DeclaredTools()
    declare_tools(body.tools, version, options, declared)
    client_tools = dict(declared.client_tools)
    found = _declare_found_tools(body, version, options, declared)
    thinking, effort = resolve_thinking(None, body.reasoning["effort"], options)
    messages = _messages(body, ItemConverter(version, options, found))
    messages = settle_reasoning(
        messages,
        thinking=thinking,
        declares_tools=bool(declared.definitions),
        behavior=options.reasoning_content_behavior,
        field="reasoning_text",
    )
    if body.chooses_web_search and options.responses_web_search is WebSearchBehavior.Reject:
        raise bad_request(SERVER_TOOLS)
    tools = check_tools(declared.definitions, body.choice, checked=declared.given_parameters)
    choice = check_choice(body.choice, declared.definitions, thinking=thinking)
    tools = keep_chosen(tools, body.choice)
    messages = _with_finished_tools(messages, tools)
    response_format, constraint_schema = _response_format(body.text["format"])
    _check_json_word(body, messages)
    check_strict(tools, has_response_format=body.text["format"]["type"] != "text")
    conversation = Conversation(
        messages,
        thinking_mode=thinking,
        tools=tools,
        tool_choice=choice,
        reasoning_effort=effort,
        **response_format,
    )
    return ConversationRequest(
        conversation,
        version,
        inference_options=_inference_options(
            body, conversation, version, options, constraint_schema
        ),
        parsing_options=parsing_options(conversation, [], options.special_tokens),
        stream=body.stream,
        client_tools=client_tools,
    )


def _inference_options(
    body: ResponsesBody,
    conversation: Conversation,
    version: ModelVersion,
    options: ConversionOptions,
    constraint_schema: Any | None,
) -> InferenceOptions:
    thinking = conversation.thinking_mode
    temperature = resolve_temperature(body.temperature, thinking=thinking)
    top_p = resolve_top_p(
        body.top_p, version, thinking=thinking, has_tools=conversation.shows_tools
    )
    top_logprobs = check_top_logprobs(body.top_logprobs)
    bound = upper_bound(options, thinking=thinking)
    return InferenceOptions(
        max_tokens=check_max_tokens(body.max_output_tokens, bound),
        temperature=temperature,
        top_p=top_p,
        logprobs=top_logprobs is not None,
        top_logprobs=top_logprobs,
        output_constraint=output_constraint(conversation, constraint_schema),
    )


def _declare_found_tools(
    body: ResponsesBody, version: ModelVersion, options: ConversionOptions, declared: DeclaredTools
) -> dict[int, list[ToolDefinition]]:
    """Declare what tool searches of the history found, as deferred; V4 knows no search.

    Returns the definitions by the index of the search output.
    """
    found: dict[int, list[ToolDefinition]] = {}
    if version is not ModelVersion.DeepseekV41Flash or not isinstance(body.input, list):
        return found
    for index, item in enumerate(body.input):
        if item["type"] != "tool_search_output":
            continue
        before = len(declared.definitions)
        declare_tools(item["tools"], version, options, declared, f"input[{index}].")
        new = [replace(tool, defer_loading=True) for tool in declared.definitions[before:]]
        declared.definitions[before:] = new
        found[index] = new
    return found


def _messages(body: ResponsesBody, converter: ItemConverter) -> list[Message]:
    if body.input is None and not body.instructions:
        raise bad_request("Either input or instructions must be provided")
    if isinstance(body.input, list) and not body.input:
        raise bad_request("Input items array must not be empty")
    messages: list[Message] = [SystemMessage(body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return [*messages, UserMessage(body.input).with_segments([(body.input, False)])]
    return messages + converter.convert(body.input or [])


def _with_finished_tools(
    messages: Sequence[Message], tools: Sequence[ToolDefinition]
) -> list[Message]:
    """Put the finished definitions in messages that add tools; leave out those not kept."""
    by_name = {tool.name: tool for tool in tools}
    finished: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage) and message.tools:
            known = [by_name[tool.name] for tool in message.tools if tool.name in by_name]
            if known:
                finished.append(SystemMessage("", tools=known))
        else:
            finished.append(message)
    return finished


def _response_format(given: dict[str, Any]) -> tuple[dict[str, Any], Any | None]:
    """Return keyword arguments for the conversation, and the normalized schema if strict."""
    if given["type"] == "json_object":
        return {"response_format": "json_object"}, None
    if given["type"] == "text":
        return {}, None
    normalized = check_response_schema(given["schema"], strict=bool(given["strict"]))
    return {"response_schema": given["schema"]}, normalized


def _check_json_word(body: ResponsesBody, messages: Sequence[Message]) -> None:
    if body.text["format"]["type"] != "json_object":
        return
    if not contains_json_word([message.content for message in messages]):
        raise bad_request(
            "Response input messages must contain the word 'json' in some form to use "
            "'text.format' of type 'json_object'."
        )
