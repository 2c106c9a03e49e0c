"""Hostile input: a clear error or plain text, never a hang or a crash, at a cost linear in size."""

import json
import time

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import CallArguments, CallStart, Piece, TextDelta
from hypothesis import given, settings
from hypothesis import strategies as st

FLASH = "DeepSeek-V4.1-Flash"
USER = [{"role": "user", "content": "json"}]
KINDS = [api.ChatCompletionRequest, api.MessagesRequest, api.ResponsesRequest]


def chat(**body):
    return {"model": FLASH, "messages": USER, **body}


def convert(body):
    return api.ChatCompletionRequest(body).convert(api.ConversionOptions())


def parse(text, size=None, **options):
    parser = api.OutputParser(api.ParsingOptions(**options))
    size = size or len(text) or 1
    events = []
    for start in range(0, len(text), size):
        events += parser.feed(Piece(text[start : start + size]))
    return events + parser.finish()


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize("bracket", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("kind", KINDS)
def test_nesting_bombs_in_a_body(kind, bracket):
    for body in (bracket * 100_000, '{"model": "x", "y": ' + bracket * 100_000):
        with pytest.raises(ValueError, match=r"^invalid JSON request: "):
            kind(body)
        with pytest.raises(ValueError, match=r"^invalid JSON request: "):
            kind(body.encode())


def test_nesting_is_limited_in_python_values():
    value = []
    for _ in range(200):
        value = [value]
    with pytest.raises(RecursionError, match="maximum nesting depth of 128"):
        api.ChatCompletionRequest(chat(x=value))
    value = []
    value.append(value)
    with pytest.raises(RecursionError, match="maximum nesting depth of 128"):
        api.ToolDefinition("f", parameters=value)


def test_nesting_bombs_in_arguments_and_output_are_text():
    call = api.ToolCall("1", "f", "[" * 100_000)
    conversation = api.Conversation([api.AssistantMessage("", None, [call])])
    rendered = api.DeepseekV41Encoding().render_conversation(conversation).prompt
    assert 'name="arguments" string="true">[[[' in rendered
    value = "[" * 100_000
    text = (
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="false">'
        f"{value}</｜DSML｜ parameter>\n</｜DSML｜ invoke>"
    )
    arguments = "".join(e.json_text for e in parse(text) if isinstance(e, CallArguments))
    assert arguments == f'{{"a": {value}}}'
    response = api.MessagesResponse("i", "m", 0, 0, 0)
    processor = api.StreamProcessor(
        api.MessagesChunkGenerator("i", "m", False), api.ParsingOptions()
    )
    for event in processor.push(api.InferenceChunk.text(text)) + processor.finish():
        response.accumulate(event)
    assert json.loads(response.to_json())["content"][0]["input"] == {}


def test_schema_bombs():
    deep = {"type": "object"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    assert convert(chat(tools=[tool])).conversation.tools[0].parameters == deep
    loop = {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    tool = {"type": "function", "function": {"name": "f", "parameters": loop}}
    assert convert(chat(tools=[tool])).conversation.tools[0].parameters == loop
    digits = "1" * 5000
    hostile = [f"a{{{digits}}}", f"a{{{digits},2{digits}}}", f"(a)\\{digits}", f"\\x{{{digits}}}"]
    for pattern in ("(" * 5000, "[" * 5000, "(a+)+" * 1000, "a{9}{9}{9}", "\\", *hostile):
        schema = {"type": "object", "properties": {"a": {"pattern": pattern}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        try:
            convert(chat(tools=[tool]))
        except api.ConversionError as error:
            assert "regex" in str(error)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud800\ud800"])
def test_lone_surrogates_are_refused_at_the_door(text):
    for build in (
        lambda: api.UserMessage(text),
        lambda: api.ToolCall("1", "f", text),
        lambda: api.ToolDefinition("f", parameters={text: 1}),
        lambda: api.InferenceChunk.text(text),
        lambda: api.ChatCompletionRequest(chat(messages=[{"role": "user", "content": text}])),
        lambda: api.ChatCompletionRequest(json.dumps(chat(x=1)) + text),
    ):
        with pytest.raises(UnicodeEncodeError):
            build()
    with pytest.raises(ValueError, match="invalid JSON request"):
        api.ChatCompletionRequest(json.dumps(chat(x=text)))


def test_nul_and_other_controls_pass(tokenizer):
    text = "".join(map(chr, range(0x20))) + "\x7f\u2028\ufeff\ufffe"
    conversation = convert(chat(messages=[{"role": "user", "content": text}])).conversation
    encoding = api.DeepseekV41Encoding().with_tokenizer(tokenizer)
    assert text in encoding.render_conversation(conversation).prompt
    assert encoding.encode(conversation)
    assert "".join(e.text for e in parse("x" + text)) == "x" + text


def test_gigantic_integers():
    digits = "9" * 200_000
    with pytest.raises(ValueError, match="invalid JSON request"):
        api.ChatCompletionRequest('{"model": "x", "messages": [], "seed": ' + digits + "}")
    with pytest.raises(OverflowError, match="outside the JSON number range"):
        api.ChatCompletionRequest(chat(seed=10**5000))
    call = api.ToolCall("1", "f", f'{{"a": {digits[:200]}}}')
    conversation = api.Conversation([api.AssistantMessage("", None, [call])])
    prompt = api.DeepseekV41Encoding().render_conversation(conversation).prompt
    assert ">1e+200</" in prompt


def test_a_hundred_thousand_parameters():
    parameter = '<｜DSML｜ parameter name="a" string="true">v</｜DSML｜ parameter>\n'
    text = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n' + parameter * 100_000
    text += "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    arguments = "".join(e.json_text for e in parse(text) if isinstance(e, CallArguments))
    assert arguments.count('"a": "v"') == 100_000 and arguments.endswith('"v"}')
    given_ = json.dumps({str(i): i for i in range(100_000)})
    call = api.ToolCall("1", "f", given_)
    conversation = api.Conversation([api.AssistantMessage("", None, [call])])
    prompt = api.DeepseekV4Encoding().render_conversation(conversation).prompt
    assert prompt.count("parameter name=") == 100_000


@pytest.mark.parametrize(
    "text",
    [
        "<" * 300_000, "\n" * 300_000, "</" * 150_000, "<｜DSML" * 40_000, "</thin" * 50_000,
        "\n<" * 150_000, "<｜DSML｜" + "</｜DSML｜ cal" * 25_000,
        "STO" * 100_000, "ab" * 150_000 + "a",
        '<｜DSML｜ invoke name="' + "x" * 300_000, "```json" * 40_000, "{" * 300_000,
    ],
    ids=lambda text: ascii(text[:9]),
)  # fmt: skip
def test_unfinished_markers_cost_time_linear_in_length(text):
    options = {"stop_sequences": ["STOP", "ab" * 5000 + "c"]}

    def both(part):
        parse(part, **options)
        parse(part, 7, **options)

    half = seconds(lambda: both(text[: len(text) // 2]))
    whole = seconds(lambda: both(text))
    assert whole < 4 * half + 0.5  # quadratic cost would be far beyond


def test_a_ten_megabyte_output_is_parsed_in_linear_time():
    paragraph = "The quick brown fox jumps over the lazy dog, 123 times.\n\n<b>日本語</b>\n"
    text = paragraph * (10_000_000 // len(paragraph))
    found = []
    took = seconds(lambda: found.extend(parse(text, 100_000)))
    assert "".join(e.text for e in found if isinstance(e, TextDelta)) == text
    assert took < 30


def test_a_request_with_a_thousand_tools():
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20)}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": schema}}
        for i in range(1000)
    ]
    took = seconds(lambda: convert(chat(tools=tools)))
    assert took < 10


def test_undecodable_tokens_do_not_pile_up_quadratically(tokenizer):
    """A token that is never a whole character could make every step decode all before it."""
    options = api.ParsingOptions()
    processor = api.StreamProcessor(api.MessagesChunkGenerator("i", "m", False), options, tokenizer)
    chunk = api.InferenceChunk.tokens([225] * 50)
    assert seconds(lambda: [processor.push(chunk) for _ in range(2000)]) < 10
    assert processor.finish()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "name", "id",
                                       "function",
                                       "tool_calls", "input", "properties", "x"]),
                      inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["messages", "input", "tools", "tool_choice", "thinking", "reasoning", "response_format",
     "text",
     "system", "stop", "max_tokens", "temperature", "stream_options", "output_config"]
)  # fmt: skip


@given(st.sampled_from(KINDS), st.dictionaries(FIELDS, JSON, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_body_converts_or_fails_clearly(kind, fields):
    body = {"model": FLASH, "messages": USER, "input": "x", **fields}
    for given_ in (body, json.dumps(body), json.dumps(body).encode()):
        try:
            kind(given_).convert(api.ConversionOptions())
        except (ValueError, api.ConversionError) as error:
            assert str(error)


@given(st.text(max_size=60) | st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_request_or_fails_clearly(body):
    for kind in KINDS:
        with pytest.raises(ValueError, match=r"^invalid (JSON request|request body)"):
            kind(body)


@given(
    st.lists(
        st.sampled_from(["<", "｜DSML｜", "</｜DSML｜", ' calls>', 'invoke name="', '"', " ",
                         '">', "\n",
                         "parameter name=", 'string="true">', 'string="false">', "</think>", "\x00",
                         "{", "```\n", "é"]),
        max_size=40,
    ).map("".join),
    st.integers(1, 5),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_any_markup_gives_calls_with_names_and_no_exception(text, size):
    events = parse(text, size)
    starts = [event for event in events if isinstance(event, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
