"""Conversion of Chat Completions requests. The order of the checks is part of the protocol."""

from __future__ import annotations

from typing import Any

from ..conversation import Conversation, Message
from ..replies.chat import ChatCompletionChunkGenerator
from .chat_body import ChatBody, read_chat_body
from .chat_messages import MessageConverter
from .converted import ConversationRequest, InferenceOptions
from .errors import bad_request
from .history import parsing_options, settle_reasoning
from .options import ConversionOptions, ModelVersion
from .protocol import ProtocolRequest, RequestBody
from .response_format import check_response_schema
from .settings import (
    check_max_tokens,
    check_stop,
    check_top_logprobs,
    contains_json_word,
    resolve_model,
    resolve_temperature,
    resolve_thinking,
    resolve_top_p,
    upper_bound,
)
from .tools import (
    check_choice,
    check_name,
    check_strict,
    check_tools,
    keep_chosen,
    output_constraint,
)


class ChatCompletionRequest(ProtocolRequest[ChatBody]):
    """A Chat Completions request. Conversion consumes it, even a failed one."""

    def __init__(self, body: RequestBody) -> None:
        """Read a request body.

        Raises:
            ValueError: the body is no JSON, or no request.
        """
        super().__init__(body, read_chat_body)

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
    ) -> ChatCompletionChunkGenerator:
        """Return the generator of the chunks that answer a request."""
        stage = request.parsing_options.thinking_initial_stage
        return ChatCompletionChunkGenerator(
            id,
            model,
            thinking_mode=request.conversation.thinking_mode,
            starts_in_reasoning=stage is not None and stage.starts_in_reasoning(),
            shows_null_usage=request.include_usage or not request.stream,
        )


def _convert(body: ChatBody, options: ConversionOptions) -> ConversationRequest:
    version = resolve_model(body.model, options)
    for index, tool in enumerate(body.tools):
        check_name(f"tools[{index}].function.name", tool.name)
    thinking, effort = resolve_thinking(body.thinking, body.reasoning_effort, options)
    messages = MessageConverter(body, version, options).convert()
    messages = settle_reasoning(
        messages,
        thinking=thinking,
        declares_tools=bool(body.tools),
        behavior=options.reasoning_content_behavior,
        field="reasoning_content",
    )
    if not body.messages:
        raise bad_request("Empty input messages")
    if any(message.prefix for message in messages[:-1]):
        raise bad_request(
            "Invalid completion message: prefix set true with message which is not final "
            "message or message role is not assistant"
        )
    _check_json_word(body, messages)
    tools = check_tools(body.tools, body.tool_choice, checked=body.given_parameters)
    choice = check_choice(body.tool_choice, body.tools, thinking=thinking)
    tools = keep_chosen(tools, body.tool_choice)
    _check_prefix(body, messages)
    stop = check_stop(body.stop)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options should be set along with stream = true")
    response_format, constraint_schema = _response_format(body)
    check_strict(tools, has_response_format=body.response_format is not None)
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
        parsing_options=parsing_options(conversation, stop, options.special_tokens),
        stream=body.stream,
        include_usage=bool((body.stream_options or {}).get("include_usage")),
    )


def _inference_options(
    body: ChatBody,
    conversation: Conversation,
    version: ModelVersion,
    options: ConversionOptions,
    constraint_schema: Any | None,
) -> InferenceOptions:
    thinking = conversation.thinking_mode
    if body.n not in (None, 1):
        raise bad_request("Invalid n value (currently only n = 1 is supported)")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(body, name)
        if value is not None and not -2 <= value <= 2:
            raise bad_request(f"Invalid {name} value, the valid range of {name} is [-2, 2]")
    temperature = resolve_temperature(body.temperature, thinking=thinking)
    top_p = resolve_top_p(
        body.top_p, version, thinking=thinking, has_tools=conversation.shows_tools
    )
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if "
            "top_logprobs is used."
        )
    top_logprobs = check_top_logprobs(body.top_logprobs)
    max_tokens = check_max_tokens(body.max_tokens, upper_bound(options, thinking=thinking))
    if body.seed is not None and body.seed >= 1 << 63:
        raise bad_request("Invalid seed value, the valid range of seed is [0, 2^63)")
    return InferenceOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        logprobs=bool(body.logprobs),
        top_logprobs=top_logprobs,
        seed=body.seed,
        output_constraint=output_constraint(conversation, constraint_schema),
    )


def _check_prefix(body: ChatBody, messages: list[Message]) -> None:
    if not messages or not messages[-1].prefix:
        return
    if body.response_format is not None and body.response_format["type"] == "json_object":
        raise bad_request("response_format json_object should not be used with prefix")
    if body.tools or any(message.tool_calls for message in body.messages):
        raise bad_request("Function call should not be used with prefix")


def _check_json_word(body: ChatBody, messages: list[Message]) -> None:
    if body.response_format is None or body.response_format["type"] != "json_object":
        return
    if not contains_json_word([message.content for message in messages]):
        raise bad_request(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type "
            "'json_object'."
        )


def _response_format(body: ChatBody) -> tuple[dict[str, Any], Any | None]:
    """Return keyword arguments for the conversation, and the normalized schema if strict."""
    given = body.response_format
    if given is None or given["type"] == "text":
        return {}, None
    if given["type"] == "json_object":
        return {"response_format": "json_object"}, None
    if given["type"] == "regex":
        return {"response_regex": given["regex"]}, None
    schema = given["schema"]
    return {"response_schema": schema}, check_response_schema(schema, strict=bool(given["strict"]))
