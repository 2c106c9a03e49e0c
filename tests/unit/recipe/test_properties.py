"""What holds for every output, conversation and text."""

import json

import deepinfer_recipe as api
from deepinfer_recipe.parsing import CallArguments, CallStart, Origin, Piece, TextDelta
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FRAGMENTS = st.sampled_from(
    [
        "hello", " ", "\n", "\n\n", "<", "</", "</think>", "<think>", "日本", "😀", "{", '{"a": 1}',
        "```json\n", "\n```", '"', "｜DSML｜", "\n\n<｜DSML｜ calls>\n", "<｜DSML｜tool_calls>\n",
        '<｜DSML｜ invoke name="f">\n', '<｜DSML｜ parameter name="a" string="true">',
        '<｜DSML｜ parameter name="b" string="false">', "</｜DSML｜ parameter>\n",
        "</｜DSML｜ invoke>\n",
        "</｜DSML｜ calls>", "</｜DSML｜", "STOP", "ST", "<｜User｜>",
    ]
)  # fmt: skip
OUTPUTS = st.lists(FRAGMENTS, max_size=16).map("".join)
OPTIONS = st.builds(
    api.ParsingOptions,
    parse_tool_calls=st.booleans(),
    starts_in_tool_calls=st.booleans(),
    parse_json_output=st.booleans(),
    thinking_initial_stage=st.sampled_from([None, *api.ThinkingInitialStage]),
    stop_sequences=st.sampled_from([[], ["STOP"], ["\n\n", "ST"]]),
)
QUICK = settings(max_examples=100, deadline=None, derandomize=True)


def parse(options, pieces):
    parser = api.OutputParser(options)
    events = []
    for piece in pieces:
        if not parser.is_stopped:
            events += parser.feed(piece)
    return events + parser.finish()


def merged(events, *, drop_spaces=False):
    """Join neighbouring deltas of one kind; how often a space stands for prose may differ."""
    joined = []
    for event in events:
        if isinstance(event, TextDelta):
            key, text = ("reasoning" if event.is_reasoning else "content"), event.text
        elif isinstance(event, CallArguments):
            key, text = "arguments", event.json_text
        else:
            joined.append(event)
            continue
        if joined and isinstance(joined[-1], list) and joined[-1][0] == key:
            joined[-1][1] += text
        elif text:
            joined.append([key, text])
    if not drop_spaces:
        return joined
    cleaned = [
        [item[0], "".join(item[1].split(" "))] if isinstance(item, list) else item
        for item in joined
    ]
    return [item for item in cleaned if not isinstance(item, list) or item[1]]


@given(OUTPUTS, OPTIONS, st.lists(st.integers(0, 12), max_size=40))
@QUICK
def test_chunking_does_not_change_the_events_up_to_merging(output, options, sizes):
    pieces, position = [], 0
    for size in sizes:
        pieces.append(Piece(output[position : position + size]))
        position += size
    pieces.append(Piece(output[position:]))
    spaces = options.parse_json_output  # one space stands for a run of prose in each chunk
    whole = merged(parse(options, [Piece(output)]), drop_spaces=spaces)
    assert merged(parse(options, pieces), drop_spaces=spaces) == whole


@given(OUTPUTS, st.sampled_from([None, api.ThinkingInitialStage.ReasoningStart]))
@QUICK
def test_no_markup_reaches_the_answer(output, stage):
    options = api.ParsingOptions(thinking_initial_stage=stage)
    for event in parse(options, [Piece(output)]):
        if isinstance(event, TextDelta):
            assert "<｜DSML｜" not in event.text and "</think>" not in event.text
        if isinstance(event, CallArguments):
            assert "</｜DSML｜" not in event.text


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters=' "\\', exclude_categories=["C", "Z"])),
        st.one_of(
            st.text(), st.integers(-99, 2**63), st.booleans(), st.none(), st.lists(st.text())
        ),
        max_size=4,
    ),
    st.integers(1, 9),
)
@QUICK
def test_a_rendered_call_parses_back_to_its_arguments(arguments, size):
    """Whatever the values spell, short of the closing marker itself."""
    text = json.dumps(arguments, ensure_ascii=False)
    call = api.AssistantMessage("", None, [api.ToolCall("1", "f", text)])
    settings_ = {"thinking_mode": False, "tools": [api.ToolDefinition("f")]}
    conversation = api.Conversation([api.UserMessage("q"), call], **settings_)
    prompt = api.DeepseekV41Encoding().render_conversation(conversation).prompt
    output = prompt[prompt.index("</think>\n\n<｜DSML｜ calls>") + len("</think>") :]
    output = output[: output.rindex("<｜end▁of▁sentence｜>")]
    pieces = [Piece(output[i : i + size]) for i in range(0, len(output), size)]
    events = parse(api.ParsingOptions(), pieces)
    joined = "".join(e.json_text for e in events if isinstance(e, CallArguments))
    assert json.loads(joined) == arguments
    assert [e.name for e in events if isinstance(e, CallStart)] == ["f"]


TURNS = st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=4)


@given(TURNS, st.booleans(), st.booleans(), st.sampled_from(["v4", "v4.1"]))
@QUICK
def test_rendering_is_prefix_stable_over_turns(turns, thinking, with_tools, version):
    """A turn renders as it did when it was the last one, so that its cache entries stay valid."""
    kinds = {"v4": api.DeepseekV4Encoding, "v4.1": api.DeepseekV41Encoding}
    encoding = kinds[version]()
    tools = [api.ToolDefinition("f")] if with_tools else []
    messages, previous = [api.SystemMessage("s")], ""
    for question, answer in turns:
        messages.append(api.UserMessage(question))
        conversation = api.Conversation(messages, thinking_mode=thinking, tools=tools)
        prompt = encoding.render_conversation(conversation).prompt
        # Without tools earlier reasoning is dropped: then the marker behind the turn differs.
        stable = previous if with_tools or not thinking else previous.removesuffix("<think>")
        assert prompt.startswith(stable)
        previous = prompt
        messages.append(api.AssistantMessage(answer, "r" if thinking else None))


SPELLINGS = st.sampled_from([token.default_str() for token in api.SpecialToken])


@given(st.lists(st.one_of(SPELLINGS, st.text(max_size=6)), max_size=8).map("".join))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_caller_text_becomes_a_special_id(tokenizer, text):
    message = api.UserMessage(text)
    reply = api.AssistantMessage(text, text, [api.ToolCall(text, text, json.dumps({"k": text}))])
    conversation = api.Conversation(
        [message, reply, api.ToolMessage(text, text), message],
        tools=[api.ToolDefinition(text, text, {"type": text})],
    )
    for kind in (api.DeepseekV4Encoding, api.DeepseekV41Encoding, api.DeepseekV32Encoding):
        encoding = kind().with_tokenizer(tokenizer)
        rendered = encoding.render_conversation(conversation)
        ids = encoding.encode(conversation)
        num_special = sum(tokenizer.is_added(token_id) for token_id in ids)
        assert num_special == len(rendered.special_ranges)


@given(st.text(), st.lists(st.integers(1, 5), max_size=30))
@settings(max_examples=100, deadline=None)
def test_decoding_never_splits_a_character(tokenizer, text, sizes):
    from deepinfer_recipe.streaming.decoding import TokenDecoder

    ids, decoder, parts = tokenizer.encode(text), TokenDecoder(tokenizer), []
    for size in [*sizes, len(ids)]:
        parts += decoder.feed(ids[:size], None)
        ids = ids[size:]
    assert all(piece.origin in (Origin.PLAIN, Origin.SPECIAL) for piece in parts)
    decoded = "".join(piece.text for piece in parts)
    assert text.startswith(decoded) and text[len(decoded) :].strip("\ufffd") == ""
