"""What holds for every stream of every protocol, and for prompts and ids over whole rounds."""

import json
import re

import deepinfer_recipe as api
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

D = "｜DSML｜"
MODELS = {"v4": "DeepSeek-V4-Pro", "v4.1": "DeepSeek-V4.1-Flash"}
ENCODINGS = {
    "v4": api.DeepseekV4Encoding,
    "v4.1": api.DeepseekV41Encoding,
    "v3.2": api.DeepseekV32Encoding,
}
SCHEMA = {"type": "object"}
BODIES = {
    api.ChatCompletionRequest: {
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    },
    api.MessagesRequest: {
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
    api.ResponsesRequest: {
        "input": "q",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    },
}
RESPONSES = {
    api.ChatCompletionRequest: api.ChatCompletionResponse,
    api.MessagesRequest: api.MessagesResponse,
    api.ResponsesRequest: api.ResponsesResponse,
}
QUICK = settings(max_examples=60, deadline=None)
EVERY_PROTOCOL = pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)

TEXT = st.text(st.characters(exclude_categories=["C"]), max_size=12).filter(
    lambda text: "｜" not in text and "</think>" not in text
)
KEYS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=4)
VALUES = st.recursive(
    TEXT | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.none() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(st.tuples(KEYS, st.dictionaries(KEYS, VALUES, max_size=3)), max_size=3)


def written(calls, version):
    """Return the block that the model writes for some calls: the one that prompts show."""
    if not calls:
        return ""
    made = [
        api.ToolCall(str(index), name, json.dumps(arguments, ensure_ascii=False))
        for index, (name, arguments) in enumerate(calls)
    ]
    conversation = api.Conversation([api.AssistantMessage("", None, made)], thinking_mode=False)
    prompt = ENCODINGS[version]().render_conversation(conversation).prompt
    return re.search(rf"\n\n<{D}.*</{D}[ _a-z]+>", prompt, re.DOTALL).group()


@st.composite
def outputs(draw):
    """Draw an answer whose calls are well formed, and what it says."""
    version, calls = draw(st.sampled_from(list(MODELS))), draw(CALLS)
    # The start of a marker at the end takes a newline of the block with it, as in the oracle.
    reasoning, content = draw(TEXT), draw(TEXT).strip("\n").rstrip("<\n")
    text = f"{reasoning}</think>{content}{written(calls, version)}"
    return version, text, content, calls


def chunked(items, sizes):
    """Cut a sequence into parts of these sizes, in turn."""
    parts, position = [], 0
    while position < len(items):
        size = sizes[len(parts) % len(sizes)]
        parts.append(items[position : position + size])
        position += size
    return parts


SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def stream(kind, version, chunks, tokenizer=None):
    """Return the events of an answer as JSON values, and the response that they add up to."""
    request = kind({"model": MODELS[version], **BODIES[kind]}).convert(api.ConversionOptions())
    generator = kind.chunk_generator(request, "i", "m")
    processor = api.StreamProcessor(generator, request.parsing_options, tokenizer)
    response = RESPONSES[kind]("i", "m", 0, 0, 0)
    stop = api.InferenceChunk.finish(api.InferenceFinishReason.Stop)
    events = []
    for chunk in [*chunks, stop]:
        for event in processor.push(chunk):
            events.append(json.loads(event.to_json()))
            response.accumulate(event)
    return events, json.loads(response.to_json())


def streamed_calls(kind, events):
    """Return [name, joined argument text] of the calls in a stream."""
    calls = []
    for event in events:
        if kind is api.ChatCompletionRequest:
            for call in event["choices"][0]["delta"].get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"]["arguments"]
        elif event["type"] == "content_block_start":
            if event["content_block"]["type"] == "tool_use":
                calls.append([event["content_block"]["name"], ""])
        elif event["type"] == "response.output_item.added":
            if event["item"]["type"] == "function_call":
                calls.append([event["item"]["name"], ""])
        elif event["type"] == "response.function_call_arguments.delta":
            calls[-1][1] += event["delta"]
        elif event["type"] == "content_block_delta":
            calls[-1:] = [[n, t + event["delta"].get("partial_json", "")] for n, t in calls[-1:]]
    return calls


def complete_calls(kind, response):
    """Return [name, arguments] of the calls in a response."""
    if kind is api.ChatCompletionRequest:
        functions = [c["function"] for c in response["choices"][0]["message"].get("tool_calls", ())]
        return [[function["name"], function["arguments"]] for function in functions]
    if kind is api.MessagesRequest:
        uses = [block for block in response["content"] if block["type"] == "tool_use"]
        return [[use["name"], use["input"]] for use in uses]
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [[item["name"], item["arguments"]] for item in items]


def content_of(kind, response):
    if kind is api.ChatCompletionRequest:
        return response["choices"][0]["message"]["content"]
    if kind is api.MessagesRequest:
        return "".join(block.get("text", "") for block in response["content"])
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


@EVERY_PROTOCOL
@given(outputs(), SIZES)
@QUICK
def test_streamed_arguments_equal_the_complete_ones_and_what_was_meant(kind, output, sizes):
    version, text, content, calls = output
    chunks = [api.InferenceChunk.text(part) for part in chunked(text, sizes)]
    events, response = stream(kind, version, chunks)
    streamed, complete = streamed_calls(kind, events), complete_calls(kind, response)
    if kind is api.MessagesRequest:
        streamed = [[name, json.loads(arguments)] for name, arguments in streamed]
        assert streamed == complete
    else:
        assert streamed == complete
        streamed = [[name, json.loads(arguments)] for name, arguments in streamed]
    assert streamed == [list(call) for call in calls]
    assert content_of(kind, response) == content


def whole_characters(tokenizer, ids):
    """Drop ids from the end until no character is cut (half a one takes its chunk with it)."""
    while True:
        try:
            b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
            return ids
        except UnicodeDecodeError:
            ids = ids[:-1]


@EVERY_PROTOCOL
@given(outputs(), SIZES, SIZES, st.data())
@QUICK
def test_tokens_in_any_grouping_say_the_same_and_never_leak(
    kind, tokenizer, output, sizes, other_sizes, data
):
    """Also where the output ends early: no part of the markup reaches content or arguments."""
    version, text, _, _ = output
    ids = tokenizer.encode(text)
    ids = whole_characters(tokenizer, ids[: data.draw(st.integers(0, len(ids)), label="length")])
    shown = []
    for some_sizes in (sizes, other_sizes):
        chunks = [api.InferenceChunk.tokens(part) for part in chunked(ids, some_sizes)]
        events, response = stream(kind, version, chunks, tokenizer)
        assert "DSML" not in json.dumps(events, ensure_ascii=False)
        assert "DSML" not in json.dumps(response, ensure_ascii=False)
        calls = complete_calls(kind, response)
        shown.append((content_of(kind, response), calls, streamed_calls(kind, events)))
    assert shown[0] == shown[1]


ROUNDS = st.lists(
    st.tuples(
        TEXT,
        TEXT,
        st.lists(st.tuples(KEYS, st.dictionaries(KEYS, VALUES, max_size=2), TEXT), max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def steps(rounds, thinking):
    """Yield the messages of a conversation each time that the model is asked."""
    messages = [api.SystemMessage("s")]
    for number, (question, answer, calls) in enumerate(rounds):
        messages.append(api.UserMessage(question))
        yield list(messages)
        if calls:
            made = [
                api.ToolCall(f"{number:02}-{index}", name, json.dumps(arguments))
                for index, (name, arguments, _) in enumerate(calls)
            ]
            messages.append(api.AssistantMessage("", answer if thinking else None, made))
            messages += [
                api.ToolMessage(result, call.id)
                for call, (_, _, result) in zip(made, calls, strict=True)
            ]
            yield list(messages)
        messages.append(api.AssistantMessage(answer, answer if thinking else None))


@pytest.mark.parametrize("version", MODELS)
@given(ROUNDS, st.booleans())
@QUICK
def test_every_step_extends_the_ids_of_the_one_before(tokenizer, version, rounds, thinking):
    """A past turn that renders anew in another way costs the whole cached prefix (R5, R8)."""
    encoding, previous = ENCODINGS[version]().with_tokenizer(tokenizer), []
    for messages in steps(rounds, thinking):
        settings_ = {"thinking_mode": thinking, "tools": [api.ToolDefinition("f")]}
        ids = encoding.encode(api.Conversation(messages, **settings_))
        assert ids[: len(previous)] == previous
        previous = ids
