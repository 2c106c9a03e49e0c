"""Every field of a full request, missing or of every wrong type: accepted or refused as there."""

import copy

import pytest

MODEL = "DeepSeek-V4.1-Flash"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WRONG = [None, True, 1, -1, 1.5, "", "x", [], ["x"], {}, {"x": 1}]
MISSING = object()
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": False}
CHAT = {
    "model": MODEL, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": True,
    "top_logprobs": 1, "max_tokens": 5, "n": 1, "seed": 1,
    "stop": ["a"], "stream": True, "temperature": 1, "top_p": 1,
    "stream_options": {"include_usage": True, "x": False}, "parallel_tool_calls": True, "user": "u",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, "strict": False, "description": "d"},
    },
    "thinking": {"type": "disabled", "budget_tokens": 1}, "reasoning_effort": "none",
    "max_completion_tokens": 1, "logit_bias": {}, "metadata": {}, "store": True, "functions": [],
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "t"}], "name": "n", "tools": []},
        {"role": "user", "name": "n", "content": [
            {"type": "text", "text": "t", "cache_control": {}},
            {"type": "image_url", "image_url": {"url": "http://h", "detail": "low"}},
            {"type": "file", "file_data": "data:image/png;base64,AAAA", "filename": "f",
             "file_id": None},
        ]},
        {"role": "latest_reminder", "content": "r"},
        {"role": "assistant", "content": "c", "reasoning_content": "r", "name": "n",
         "prefix": False, "refusal": "x", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]},
        {"role": "tool", "content": "t", "tool_call_id": "1", "name": "n"},
    ],
    "tools": [{"type": "function", "function": FUNCTION, "strict": True}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
}  # fmt: skip
MESSAGES = {
    "model": MODEL, "max_tokens": 5, "stop_sequences": ["a"], "stream": False, "temperature": 1,
    "system": [{"type": "text", "text": "t", "cache_control": {}}], "top_p": 1, "top_k": 1,
    "thinking": {"type": "disabled", "budget_tokens": 1}, "metadata": {"user_id": "u"},
    "output_config": {"effort": "low", "format": {}}, "service_tier": "auto", "mcp_servers": [],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "t", "cache_control": {}, "citations": []},
            {"type": "image",
             "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": "http://h"}},
            {"type": "document", "title": "t", "context": "c",
             "source": {"type": "base64", "media_type": "a/b", "data": "x"}},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"x": 1}]},
            {"type": "text", "text": "t"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {}, "cache_control": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "is_error": False, "content": [
                {"type": "text", "text": "x"},
                {"type": "image", "source": {"type": "url", "url": "http://h"}},
                {"type": "document", "source": {"media_type": "x"}},
                {"type": "tool_reference", "tool_name": "f"},
            ]},
        ]},
        {"role": "system", "content": [
            {"type": "text", "text": "t"},
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        ]},
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "defer_loading": False,
         "strict": True, "cache_control": {}},
        {"type": "web_search_20250305", "name": "w", "max_uses": 1, "allowed_domains": []},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
}  # fmt: skip
RESPONSES = {
    "model": MODEL, "instructions": "i", "max_output_tokens": 5, "temperature": 1, "top_p": 1,
    "top_logprobs": 1, "stream": False, "user": "u", "store": True, "metadata": {}, "include": [],
    "reasoning": {"effort": "none", "summary": "auto", "generate_summary": "concise"},
    "text": {
        "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False,
                   "description": "d"},
        "verbosity": "low",
    },
    "previous_response_id": "x", "background": False, "max_tool_calls": 1, "conversation": "c",
    "input": [
        {"type": "message", "role": "user", "id": "m", "status": "completed", "content": [
            {"type": "input_text", "text": "t"},
            {"type": "input_image", "image_url": "http://h", "detail": "low", "file_id": None},
            {"type": "input_file", "file_id": "f", "filename": "n", "file_data": "d"},
            {"type": "output_text", "text": "t", "annotations": [], "logprobs": []},
        ]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "e"},
        {"type": "message", "role": "assistant", "content": "c", "phase": "final_answer"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "t"},
        {"type": "tool_search_call", "call_id": "3", "arguments": {"a": 1}, "execution": "client"},
        {"type": "function_call_output", "call_id": "1",
         "output": [{"type": "input_text", "text": "t"}]},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "t"},
        {"type": "tool_search_output", "call_id": "3", "execution": "client", "tools": [
            {"type": "function", "defer_loading": True, **FUNCTION, "name": "g"},
        ]},
        {"type": "web_search_call", "id": "w", "action": {}},
        {"type": "item_reference", "id": "x"},
        {"role": "user", "content": "json"},
    ],
    "tools": [
        {"type": "function", "defer_loading": False, **FUNCTION},
        {"type": "namespace", "name": "n", "description": "d", "tools": [
            {"type": "function", "defer_loading": False, **FUNCTION},
        ]},
        {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "text"}},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": SCHEMA},
        {"type": "web_search", "search_context_size": "low", "filters": {},
         "user_location": {"type": "approximate", "city": "c", "country": "c", "region": "r",
                           "timezone": "t"}},
        {"type": "mcp", "x": 1},
    ],
    "tool_choice": {"type": "function", "name": "f"},
}  # fmt: skip
BODIES = {
    "ChatCompletionRequest": CHAT,
    "MessagesRequest": MESSAGES,
    "ResponsesRequest": RESPONSES,
}


def paths(value, path=()):
    """Yield the path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from paths(item, (*path, key))


def changed(body, path, value):
    body = copy.deepcopy(body)
    container = body
    for key in path[:-1]:
        container = container[key]
    if value is MISSING:
        del container[path[-1]]
    else:
        container[path[-1]] = copy.deepcopy(value)
    return body


@pytest.mark.parametrize("request_type", BODIES)
def test_fields_are_typed_as_in_the_oracle(sides, convert, request_type):
    body = BODIES[request_type]
    different = []
    for path in paths(body):
        for value in (MISSING, *WRONG):
            case = {
                "request": request_type,
                "options": {"messages_web_search": "Drop"},
                "context": None,
                "body": changed(body, path, value),
            }
            expected, actual = (convert(side, case) for side in sides)
            if expected != actual:
                shown = "missing" if value is MISSING else repr(value)
                different.append(f"{'.'.join(map(str, path))} {shown}")
    assert different == []
