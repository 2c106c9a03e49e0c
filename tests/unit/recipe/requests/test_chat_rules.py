"""Rules of Chat Completions that the vectors do not tell apart."""

import json

import deepinfer_recipe as api
import pytest

USER = {"role": "user", "content": "q"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def convert(**fields):
    body = {"model": "DeepSeek-V4-Pro", "messages": [USER], **fields}
    return api.ChatCompletionRequest(body).convert(api.ConversionOptions())


def test_an_unknown_choice_is_named_before_a_prefix_with_tools():
    prefix = {"role": "assistant", "content": "a", "prefix": True}
    choice = {"type": "function", "function": {"name": "none"}}
    with pytest.raises(api.ConversionError, match="no function named 'none'"):
        convert(messages=[USER, prefix], tools=[TOOL], tool_choice=choice)
    with pytest.raises(api.ConversionError, match="should not be used with prefix"):
        convert(messages=[USER, prefix], tools=[TOOL])


@pytest.mark.parametrize(
    ("fields", "is_shown"),
    [
        ({}, True),
        ({"stream": True}, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
    ],
)
def test_usage_is_null_until_the_end_or_absent(fields, is_shown):
    request = convert(**fields)
    generator = api.ChatCompletionRequest.chunk_generator(request, "i", "m")
    processor = api.StreamProcessor(generator, request.parsing_options)
    first, *_, last = processor.push(api.InferenceChunk.text("</think>a")) + processor.finish()
    first, last = json.loads(first.to_json()), json.loads(last.to_json())
    assert ("usage" in first) == is_shown and first.get("usage") is None
    assert last["usage"]["total_tokens"] == 0


def test_reasoning_is_needed_only_behind_the_last_user():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answered = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    reject = api.ConversionOptions(reasoning_content_behavior=api.ReasoningContentBehavior.Reject)
    body = {"model": "DeepSeek-V4-Pro", "tools": [TOOL], "messages": [USER, *answered, USER]}
    assert api.ChatCompletionRequest(body).convert(reject).conversation.thinking_mode
    with pytest.raises(api.ConversionError, match="must be passed back"):
        api.ChatCompletionRequest({**body, "messages": [USER, *answered]}).convert(reject)
