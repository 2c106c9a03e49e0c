"""Four times the input costs about four times as much, whatever shape a caller gives it.

Each case is a shape that some loop inside a loop once made, or could make, quadratic.
"""

import gc
import json
from contextlib import suppress
from time import process_time

import deepinfer_recipe as api
import pytest

V41 = "DeepSeek-V4.1-Flash"
D = "｜DSML｜"
SCHEMA = {"type": "object"}
MAX_GROWTH = 8  # of time for four times the input; linear is 4, quadratic is 16
ENOUGH_S = 0.01  # a shorter time says nothing about growth


def seconds(run):
    gc.disable()  # a collection costs what the whole process holds, not what the case does
    begin = process_time()
    run()
    taken = process_time() - begin
    gc.enable()
    return taken


def assert_linear(make, size):
    """Compare the cost of some size, large enough to be measured, and of four times as much."""
    while seconds(make(size)) < ENOUGH_S:
        size *= 2
        if size > 10**6:
            return
    small, large = make(size), make(4 * size)
    for _ in range(3):  # more than once, for the machine has moods
        if seconds(large) < MAX_GROWTH * seconds(small):
            return
    pytest.fail(f"the cost of {4 * size} is more than {MAX_GROWTH} times that of {size}")


def converter(kind, body):
    options = api.ConversionOptions(default_thinking_mode=False)

    def run():
        with suppress(api.ConversionError):
            kind({"model": V41, **body}).convert(options)

    return run


def chat(**body):
    user = [{"role": "user", "content": "x"}]
    return converter(api.ChatCompletionRequest, {"messages": user, **body})


def chat_schema(schema, **function):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, **function}}
    return chat(tools=[tool])


def messages(turns):
    return converter(api.MessagesRequest, {"messages": turns})


def responses(**body):
    return converter(api.ResponsesRequest, {"input": "x", **body})


def properties(count):
    names = [str(index) for index in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }


def chat_calls(count):
    function = {"name": "f", "arguments": ""}
    calls = [{"id": str(i), "type": "function", "function": function} for i in range(count)]
    results = [{"role": "tool", "tool_call_id": str(i), "content": ""} for i in range(count)]
    return chat(messages=[{"role": "assistant", "tool_calls": calls}, *results])


def tool_uses(count):
    uses = [{"type": "tool_use", "id": str(i), "name": "f", "input": {}} for i in range(count)]
    results = [{"type": "tool_result", "tool_use_id": str(i)} for i in range(count)]
    return messages([{"role": "assistant", "content": uses}, {"role": "user", "content": results}])


def same_namespaces(count):
    function = {"type": "function", "name": "f", "parameters": SCHEMA}
    return responses(tools=[{"type": "namespace", "name": "n", "tools": [function]}] * count)


def searches(count):
    items = []
    for index in range(count):
        call_id = str(index)
        found = [{"type": "function", "name": f"f{index}", "parameters": SCHEMA}]
        items += [
            {"type": "tool_search_call", "call_id": call_id, "arguments": {}},
            {"type": "tool_search_output", "call_id": call_id, "tools": found},
        ]
    return responses(input=items)


def texts(count):
    return messages(
        [{"role": "assistant", "content": [{"type": "text", "text": "t" * 99}] * count}]
    )


def thoughts(count):
    part = {"type": "reasoning_text", "text": "t" * 99}
    return responses(input=[{"type": "reasoning", "content": [part]}] * count)


REQUESTS = {
    "messages": lambda n: chat(messages=[{"role": "user", "content": "x"}] * n),
    "blocks": lambda n: chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * n}]
    ),
    "calls": chat_calls,
    "properties": lambda n: chat_schema(properties(n)),
    "strict properties": lambda n: chat_schema(properties(n), strict=True),
    "alternatives": lambda n: chat_schema({"type": "object", "anyOf": [{"type": "null"}] * n}),
    "references to the root": lambda n: chat_schema({**SCHEMA, "allOf": [{"$ref": "#"}] * n}),
    "a chain of references": lambda n: chat_schema(
        {**SCHEMA, "$ref": "#/$defs/0"}
        | {"$defs": {str(i): {"$ref": f"#/$defs/{(i + 1) % n}"} for i in range(n)}}
    ),
    "a long pattern": lambda n: chat_schema({"properties": {"a": {"pattern": "(?:[a-z]{2})" * n}}}),
    "open brackets": lambda n: chat_schema({"properties": {"a": {"pattern": "([" * n}}}),
    "texts": texts,
    "tool uses": tool_uses,
    "assistant items": lambda n: responses(input=[{"role": "assistant", "content": "x" * 99}] * n),
    "thoughts": thoughts,
    "one name for all namespaces": same_namespaces,
    "tool searches": searches,
}


@pytest.mark.parametrize("shape", REQUESTS)
def test_requests(shape):
    assert_linear(REQUESTS[shape], 2000)


def rounds(count):
    return [api.UserMessage("x"), api.AssistantMessage("y")] * count


def with_calls(count):
    calls = [api.ToolCall(str(i), "f", "{}") for i in range(count)]
    return [api.AssistantMessage("", None, calls)]


def numbers(count):
    arguments = json.dumps({str(i): 1e-7 * i for i in range(count)})
    return [api.AssistantMessage("", None, [api.ToolCall("1", "f", arguments)])]


CONVERSATIONS = {
    "users": lambda n: [api.UserMessage("x")] * n,
    "rounds": rounds,
    "many calls, then rounds": lambda n: with_calls(n) + rounds(n),
    "many calls, then results": lambda n: (
        with_calls(n) + [api.ToolMessage("x", "1"), api.AssistantMessage("y")] * n
    ),
    "system messages": lambda n: [api.SystemMessage("x"), api.UserMessage("y")] * n,
    "reminders": lambda n: [api.LatestReminderMessage("x")] * n,
    "images": lambda n: [api.UserMessage("<｜image｜>" * n, [api.UrlImageSource("u")] * n)],
    "numbers": numbers,
}
ENCODINGS = [api.DeepseekV4Encoding, api.DeepseekV41Encoding, api.DeepseekV32Encoding]


@pytest.mark.parametrize("shape", CONVERSATIONS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_prompts(encoding, shape):
    def make(size):
        tools = [api.ToolDefinition(str(i)) for i in range(size // 10)]
        conversation = api.Conversation(CONVERSATIONS[shape](size), tools=tools)
        return lambda: encoding().render_conversation(conversation)

    assert_linear(make, 2000)


def call(name, body):
    return f'<{D} calls>\n<{D} invoke name="{name}">\n{body}</{D} invoke>\n'


def parameter(text, name="a", is_string="true"):
    return f'<{D} parameter name="{name}" string="{is_string}">{text}</{D} parameter>\n'


OUTPUTS = {
    "calls": lambda n: call("f", parameter("v")) * n,
    "parameters": lambda n: call("f", parameter("v") * n),
    "a patch": lambda n: call("apply_patch", parameter('+x"\\u\n' * n, "input")),
    "half surrogates": lambda n: call("apply_patch", parameter('"\\ud83d' * n, "input", "false")),
    "an unclosed patch": lambda n: call("apply_patch", parameter("")[:-22] + "\\" * n),
    "a search": lambda n: call("tool_search", parameter("v") * n),
    "an unclosed name": lambda n: call("x" * n, "")[: n + 30],
    "newlines": lambda n: "\n" * n,
    "half markers": lambda n: f"\n<{D[:-1]}" * n,
    "half ends": lambda n: "</thin" * n,
}
REQUEST_BODIES = {
    api.ChatCompletionRequest: {"messages": [{"role": "user", "content": "x"}]},
    api.MessagesRequest: {"messages": [{"role": "user", "content": "x"}]},
    api.ResponsesRequest: {
        "input": "x",
        "tools": [
            {"type": "custom", "name": "apply_patch"},
            {"type": "tool_search", "execution": "client"},
        ],
    },
}
RESPONSES = {
    api.ChatCompletionRequest: api.ChatCompletionResponse,
    api.MessagesRequest: api.MessagesResponse,
    api.ResponsesRequest: api.ResponsesResponse,
}


@pytest.mark.parametrize("shape", OUTPUTS)
@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("chunk_size", [2, 10**9], ids=["pairs", "whole"])
def test_outputs(kind, shape, chunk_size):
    request = kind({"model": V41, **REQUEST_BODIES[kind]}).convert(api.ConversionOptions())

    def make(size):
        text = OUTPUTS[shape](size)

        def run():
            generator = kind.chunk_generator(request, "i", "m")
            options = api.ParsingOptions(stop_sequences=["\n\n\nSTOP", "nnnn"])
            processor = api.StreamProcessor(generator, options)
            response = RESPONSES[kind]("i", "m", 0, 0, 0)
            events = []
            for start in range(0, len(text), chunk_size):
                chunk = api.InferenceChunk.text(text[start : start + chunk_size])
                events += processor.push(chunk)
            for event in events + processor.finish():
                response.accumulate(event)
            response.to_json()

        return run

    assert_linear(make, 20)
