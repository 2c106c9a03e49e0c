"""Faults that users of other engines reported in tool calls and reasoning, each as a test."""

import json

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import CallArguments, CallStart, Piece, TextDelta

FLASH = "DeepSeek-V4.1-Flash"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "q"}
OFF = {"thinking": {"type": "disabled"}}


def convert(**body):
    request = api.ChatCompletionRequest({"model": FLASH, "messages": [USER], **body})
    return request.convert(api.ConversionOptions())


def prompt(**body):
    conversation = convert(**body).conversation
    return api.DeepseekV41Encoding().render_conversation(conversation).prompt


def events(text, **options):
    parser = api.OutputParser(api.ParsingOptions(**options))
    found = []
    for char in text:
        found += parser.feed(Piece(char))
    return found + parser.finish()


def content(found):
    return "".join(e.text for e in found if isinstance(e, TextDelta) and not e.is_reasoning)


def arguments(found):
    return "".join(e.json_text for e in found if isinstance(e, CallArguments))


def block(value, bars="｜DSML｜", name="tool_calls"):
    return (
        f'\n\n<{bars}{name}>\n<{bars}invoke name="f">\n'
        f'<{bars}parameter name="a" string="true">{value}</{bars}parameter>\n'
        f"</{bars}invoke>\n</{bars}{name}>"
    )


@pytest.mark.parametrize("name", ["tool_calls", " calls", "function_calls"])
def test_streamed_calls_leak_no_markup_and_have_their_arguments(name):
    """Fragments of markup leaked into content, or arguments came out empty (T1, T2, T4)."""
    found = events("so" + block("v", name=name))
    assert content(found) == "so"
    assert [e.name for e in found if isinstance(e, CallStart)] == ["f"]
    assert json.loads(arguments(found)) == {"a": "v"}


def test_no_tools_are_shown_when_none_may_be_called():
    """With `tool_choice: none` the model still saw tools and wrote raw markup (T3)."""
    shown = prompt(tools=[TOOL], tool_choice="none")
    assert "DSML" not in shown and "## Tools" not in shown
    assert not convert(tools=[TOOL], tool_choice="none").parsing_options.parse_tool_calls


def test_a_named_choice_gets_whole_arguments():
    """A named choice leaked markup (T4): the prompt opens the block, and parsing starts in it."""
    choice = {"type": "function", "function": {"name": "f"}}
    request = convert(tools=[TOOL], tool_choice=choice, **OFF)
    assert request.parsing_options.starts_in_tool_calls
    rest = block("v", name=" calls").removeprefix("\n\n<｜DSML｜ calls>\n")
    parser = api.OutputParser(request.parsing_options)
    found = parser.feed(Piece(rest)) + parser.finish()
    assert content(found) == "" and json.loads(arguments(found)) == {"a": "v"}


@pytest.mark.parametrize("bars", ["｜DSML｜", "|DSML|"])
def test_both_spellings_of_the_marker_can_be_parsed(bars):
    """Models and quantizations differ in the bars they write (T5): the spelling is an option."""
    found = events(block("v", bars), special_tokens=api.SpecialTokens(dsml=bars))
    assert content(found) == "" and json.loads(arguments(found)) == {"a": "v"}


def test_an_unfinished_call_never_leaks():
    """A truncated block must not fall back to text (T1, T5)."""
    whole = "so" + block("value")
    for end in range(len(whole)):
        assert content(events(whole[:end])).rstrip("\n<｜DSML") in ("", "s", "so"[: end or 1])


def test_a_forced_choice_in_thinking_mode_is_a_clear_error():
    """A forced choice in thinking mode failed without a word on why (T9); the API refuses it."""
    with pytest.raises(api.ConversionError, match="Thinking mode does not support") as caught:
        convert(tools=[TOOL], tool_choice="required")
    assert caught.value.status_code == 400


def test_a_block_inside_the_reasoning_ends_it():
    """Calls before `</think>` were taken for reasoning (T10)."""
    stage = api.ThinkingInitialStage.ReasoningStart
    found = events("hm" + block("v"), thinking_initial_stage=stage)
    assert "".join(e.text for e in found if isinstance(e, TextDelta) and e.is_reasoning) == "hm"
    assert json.loads(arguments(found)) == {"a": "v"}


@pytest.mark.parametrize(
    ("effort", "number"), [("low", 50), ("high", 75), ("xhigh", 75), ("max", 100), (None, 75)]
)
def test_efforts_are_those_of_the_official_encoder(effort, number):
    """Templates differed from the official encoder in effort and generation prompt (R4)."""
    body = {} if effort is None else {"reasoning_effort": effort}
    shown = prompt(**body)
    assert f"Reasoning Effort: {number} (range 1-100" in shown
    assert shown.endswith("<｜User｜>q<｜Assistant｜><think>")


def test_a_past_turn_renders_as_it_did():
    """A past turn rendered anew broke the prefix cache (R5)."""
    turn = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    first = prompt(tools=[TOOL])
    second = prompt(tools=[TOOL], messages=[USER, turn, USER])
    assert second.startswith(first + "r</think>a<｜end▁of▁sentence｜>")


def test_history_without_reasoning_is_accepted():
    """Requests failed when `reasoning_content` was not sent back (R7)."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    assert convert(messages=history, tools=[TOOL]).conversation.messages[1].reasoning_content == ""
    strict = api.ConversionOptions(reasoning_content_behavior=api.ReasoningContentBehavior.Reject)
    request = api.ChatCompletionRequest({"model": FLASH, "messages": history})
    with pytest.raises(api.ConversionError, match="must be passed back"):
        request.convert(strict)


def test_cached_prompt_tokens_are_reported():
    """Cache hits were invisible (R8)."""
    request = convert()
    generator = api.ChatCompletionRequest.chunk_generator(request, "i", "m")
    processor = api.StreamProcessor(generator, request.parsing_options)
    usage = api.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=8)
    processor.push(api.InferenceChunk.ready(prompt_usage=usage))
    last = json.loads(processor.finish()[-1].to_json())["usage"]
    assert last["prompt_tokens_details"] == {"cached_tokens": 8}
    assert (last["prompt_cache_hit_tokens"], last["prompt_cache_miss_tokens"]) == (8, 2)
