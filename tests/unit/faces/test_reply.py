"""What a recipe's parser makes of an answer reaches outputs and streams, whole and joined alike."""

import asyncio
import re

import pytest
from deepinfer_core.errors import RequestError
from deepinfer_core.faces.chat import ChatEncoder
from deepinfer_core.faces.collect import make_jobs, run_jobs
from deepinfer_core.faces.encoder import Encoder
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.reply import ReplyReader
from deepinfer_core.faces.streams import TokenStream, stream_async
from deepinfer_core.outputs import Reply, ToolCall, ToolCallDelta
from deepinfer_core.plugin_api.recipe import (
    AnswerText,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.fake_engine import FakeEngine
from deepinfer_core.testing.fake_recipe import FakeRecipe
from hypothesis import given
from hypothesis import strategies as st

MESSAGES = [{"role": "user", "content": "hi"}]
LONG = SamplingParams(max_tokens=200)
ANSWER = '(why 日本)so[f:{"a": 1}][g:{}]'
CALLS = [ToolCall("call_0", "f", '{"a": 1}'), ToolCall("call_1", "g", "{}")]


@pytest.fixture
def encoder(engine):
    recipe = FakeRecipe("X", engine.tokenizer.to_json())
    return Encoder(engine.tokenizer, ChatEncoder(engine.tokenizer, template=None, recipe=recipe))


@pytest.fixture
def chat(frontend, encoder):
    """Answer one conversation whole and as a stream, see that both agree, return the output."""

    def chat(params=LONG, messages=MESSAGES, **options):
        (whole,) = run_jobs(frontend, make_jobs(encoder.chats(messages, **options), params))
        with TokenStream(frontend, encoder.chat(messages, **options), params) as stream:
            replies = {}
            for delta in stream:
                replies.setdefault(delta.index, Reply()).add(delta)
        assert stream.output.outputs == whole.outputs
        for sample in whole.outputs:
            reply = replies[sample.index]
            assert reply.content == sample.content
            assert reply.reasoning_content == sample.reasoning_content
            assert reply.tool_calls == sample.tool_calls
            assert reply.message == sample.message
        return whole

    return chat


def test_reasoning_answer_and_calls_are_told_apart(chat, say):
    ids = say(ANSWER)
    (sample,) = chat().outputs
    assert sample.is_parsed
    assert (sample.reasoning_content, sample.content) == ("why 日本", "so")
    assert sample.tool_calls == CALLS
    assert sample.text == ANSWER
    assert sample.token_ids[:-1] == ids
    assert sample.finish_reason == "stop"


def test_an_answer_continues_the_conversation(chat, say, encoder):
    say(ANSWER)
    message = chat().outputs[0].message
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in CALLS
    ]
    reasoning = {"reasoning_content": "why 日本"}
    assert message == {"role": "assistant", "content": "so", **reasoning, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": c.id, "content": "1"} for c in CALLS]
    say("done")
    whole = chat(messages=[*MESSAGES, message, *results])
    prompt = encoder.tokenizer.decode(whole.prompt_token_ids)
    assert '"reasoning_content": "why 日本", "tool_calls": [{"id": "call_0"' in prompt
    assert whole.outputs[0].message == {"role": "assistant", "content": "done"}


def test_samples_are_read_apart(chat, engine):
    texts = ["(a)b", "c[f:1]", "(d"]
    engine._reply = lambda prompt, index: engine.tokenizer.encode(texts[index])
    samples = chat(SamplingParams(max_tokens=99, n=3)).outputs
    assert [s.content for s in samples] == ["b", "c", ""]
    assert [s.reasoning_content for s in samples] == ["a", "", "d"]
    assert [len(s.tool_calls) for s in samples] == [0, 1, 0]


@pytest.mark.parametrize("num_tokens", [1, 3, 6, 7, 8, 13, 15, 17, 19, 26, 29])
def test_an_answer_that_is_cut_short_has_what_there_is(chat, say, num_tokens):
    ids = say(ANSWER)
    (sample,) = chat(SamplingParams(max_tokens=num_tokens)).outputs
    assert sample.finish_reason == "length"
    # Half a character at the end is U+FFFD in the answer, as it is in the text.
    assert "why 日本".startswith(sample.reasoning_content.rstrip("\ufffd"))
    assert "so".startswith(sample.content)
    assert sample.reasoning_content + sample.content == re.sub(r"[()]|\[.*", "", sample.text)
    called = "".join(f"[{c.name}:{c.arguments}" for c in sample.tool_calls)
    assert "".join(re.findall(r"\[\w:[^]]*", sample.text)) == called
    assert len(sample.token_ids) == num_tokens < len(ids)


@pytest.mark.parametrize(
    ("stop", "includes", "content", "reasoning"),
    [
        ("END", False, "a EN b ", "r EN r"),
        ("END", True, "a EN b END", "r EN r"),
        ("EN", False, "", "r "),
        ("EN", True, "", "r EN"),
        ("N r)", False, "", "r E"),
        ("N r)", True, "", "r EN r"),
        ("zzz", False, "a EN b END c", "r EN r"),
    ],
)
def test_no_part_of_a_stop_string_is_in_the_answer(chat, say, stop, includes, content, reasoning):
    say("(r EN r)a EN b END c[f:x]")
    params = SamplingParams(max_tokens=99, stop=stop, include_stop_str_in_output=includes)
    (sample,) = chat(params).outputs
    assert (sample.content, sample.reasoning_content) == (content, reasoning)
    assert sample.stop_reason == (None if stop == "zzz" else stop)
    assert len(sample.tool_calls) == (stop == "zzz")


def test_a_stop_string_before_min_tokens_is_text_of_the_answer(chat, say):
    say("aENDbENDc")
    (sample,) = chat(SamplingParams(max_tokens=99, stop="END", min_tokens=6)).outputs
    assert sample.content == sample.text == "aENDb"


def test_markup_between_the_parts_of_a_stop_string_makes_it_none(chat, say):
    say("aE(r)ND b")
    (sample,) = chat(SamplingParams(max_tokens=99, stop="END")).outputs
    assert (sample.content, sample.finish_reason) == ("aEND b", "stop")
    assert sample.stop_reason is None


def test_a_stop_token_is_no_part_of_the_answer(chat, say, engine):
    (stop,) = engine.tokenizer.encode("c")
    say("abcd")
    (sample,) = chat(SamplingParams(max_tokens=99, stop_token_ids=(stop,))).outputs
    assert sample.content == sample.text == "ab"
    params = SamplingParams(max_tokens=99, stop_token_ids=(stop,), include_stop_str_in_output=True)
    assert chat(params).outputs[0].content == "abc"


def test_an_answer_that_cannot_be_read_ends_its_request_only(frontend, encoder, engine):
    """What a parser raises used to reach the engine's loop, and ended every request."""
    texts = iter(["fine", "ab#cd", "fine too"])
    replies = [engine.tokenizer.encode(text) for text in texts]
    engine._reply = lambda prompt, index: replies[engine.num_added - 1]
    outputs = run_jobs(frontend, make_jobs(encoder.chats([MESSAGES] * 3), LONG))
    assert [o.error is None for o in outputs] == [True, False, True]
    assert "could not read the answer: ValueError: there is no #" in str(outputs[1].error)
    assert isinstance(outputs[1].error.__cause__, ValueError)
    assert outputs[1].outputs[0].finish_reason == "error"
    assert [o.outputs[0].content for o in outputs[::2]] == ["fine", "fine too"]


def test_a_stream_that_cannot_be_read_says_so_and_stops_the_engine_s_work(
    frontend, encoder, engine
):
    ids = engine.tokenizer.encode("ab#" + "c" * 3000)
    engine._reply = lambda prompt, index: ids
    stream = TokenStream(frontend, encoder.chat(MESSAGES), SamplingParams(max_tokens=None))
    deltas = []
    with pytest.raises(RequestError, match="could not read"):
        for delta in stream:
            deltas.append(delta)  # those before the error are wanted
    assert deltas[-1].finish_reason == "error"
    assert "could not read" in str(deltas[-1].error)
    metrics = frontend.metrics()
    assert metrics.num_failed == 1
    assert metrics.num_output_tokens < 20
    engine._reply = lambda prompt, index: ids[:2]
    with TokenStream(frontend, encoder.chat(MESSAGES), LONG) as stream:
        assert "".join(delta.content for delta in stream) == "ab"


def test_one_unreadable_sample_leaves_the_others(frontend, encoder, engine):
    texts = ["ab", "c#d", "ef"]
    engine._reply = lambda prompt, index: engine.tokenizer.encode(texts[index])
    params = SamplingParams(max_tokens=99, n=3)
    (output,) = run_jobs(frontend, make_jobs(encoder.chats(MESSAGES), params))
    assert output.error is not None
    assert [s.finish_reason for s in output.outputs] == ["stop", "error", "stop"]
    assert [s.content for s in output.outputs][::2] == ["ab", "ef"]


def test_an_aborted_chat_has_what_there_is(frontend, encoder, engine):
    ids = engine.tokenizer.encode("(" + "abc" * 1000)
    engine._reply = lambda prompt, index: ids
    params = SamplingParams(max_tokens=None)
    stream = TokenStream(frontend, encoder.chat(MESSAGES), params, request_id="r")
    reply = Reply()
    reply.add(next(stream))
    frontend.abort("r")
    for delta in stream:
        reply.add(delta)
    (sample,) = stream.output.outputs
    assert sample.finish_reason == "abort"
    assert sample.text == "(" + sample.reasoning_content
    assert reply.reasoning_content == sample.reasoning_content


def test_async_streams_carry_the_answer(frontend, encoder, say):
    say(ANSWER)

    async def read():
        reply = Reply()
        async for delta in stream_async(frontend, encoder.chat(MESSAGES), LONG):
            reply.add(delta)
        return reply

    reply = asyncio.run(read())
    assert (reply.reasoning_content, reply.content) == ("why 日本", "so")
    assert reply.tool_calls == CALLS


def test_a_parser_that_cannot_be_made_is_an_error_of_the_request(frontend, encoder, monkeypatch):
    monkeypatch.delattr(FakeRecipe, "parser")
    (output,) = run_jobs(frontend, make_jobs(encoder.chats(MESSAGES), LONG))
    assert "no parser" in str(output.error)


def test_events_that_are_none_are_refused(engine):
    class Parser:
        def feed(self, token_ids):
            return [token_ids]

        def finish(self):
            return [ToolCallArguments("{")]

    with pytest.raises(TypeError, match="list is no event"):
        ReplyReader(Parser()).feed([1])
    with pytest.raises(ValueError, match="before the start"):
        ReplyReader(Parser()).finish([], is_stopped=False)


def test_what_is_not_read_by_a_recipe_is_its_own_answer(frontend, encoder, say):
    say("(why)so[f:1]")
    (output,) = run_jobs(frontend, make_jobs(encoder.prompts("p"), LONG))
    (sample,) = output.outputs
    assert sample.content == sample.text == "(why)so[f:1]"
    assert not sample.is_parsed
    assert sample.message == {"role": "assistant", "content": sample.text}
    with TokenStream(frontend, encoder.either("p"), LONG) as stream:
        assert all(d.content == d.text and not d.reasoning_content for d in stream)
    assert stream.output.outputs == output.outputs


class Scripted:
    """Each id is an event; `finish` gives the rest."""

    def __init__(self, events, num_held):
        self.events, self.num_held = events, num_held
        self.held = []

    def feed(self, token_ids):
        self.held += [self.events[i] for i in token_ids]
        cut = max(0, len(self.held) - self.num_held)
        given, self.held = self.held[:cut], self.held[cut:]
        return given

    def finish(self):
        return self.held


texts = st.text("abEND", max_size=5)
events_of_answers = st.lists(
    st.one_of(
        st.builds(ReasoningText, texts),
        st.builds(AnswerText, texts),
        st.builds(ToolCallStart, st.just("id"), texts),
    ).flatmap(
        lambda event: (
            st.tuples(st.just(event), st.lists(st.builds(ToolCallArguments, texts)))
            if isinstance(event, ToolCallStart)
            else st.just((event, []))
        )
    ),
    max_size=8,
).map(lambda pairs: [e for event, rest in pairs for e in (event, *rest)])


@given(events=events_of_answers, num_held=st.integers(0, 3), data=st.data())
def test_joined_deltas_do_not_depend_on_the_chunking(events, num_held, data):
    ids = list(range(len(events)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    stop = data.draw(st.sampled_from([(), ("END",), ("a", "EN")]))
    whole, joined = Reply(), Reply()
    whole.add(ReplyReader(Scripted(events, 0), stop=stop).finish(ids, is_stopped=False))
    reader = ReplyReader(Scripted(events, num_held), stop=stop)
    for start, end in zip([0, *cuts], cuts, strict=False):
        joined.add(reader.feed(ids[start:end]))
    joined.add(reader.finish(ids[cuts[-1] if cuts else 0 :], is_stopped=False))
    assert joined.message == whole.message
    assert whole.content == "".join(e.text for e in events if isinstance(e, AnswerText))
    reasoning = "".join(e.text for e in events if isinstance(e, ReasoningText))
    assert whole.reasoning_content == reasoning
    arguments = "".join(e.text for e in events if isinstance(e, ToolCallArguments))
    assert "".join(c.arguments for c in whole.tool_calls) == arguments


def test_deltas_of_calls_say_which_call():
    events = [ToolCallStart("i", "f"), ToolCallArguments("1"), ToolCallArguments("2")]
    reader = ReplyReader(Scripted(events, 0))
    assert reader.feed([0, 1]).tool_calls == [ToolCallDelta(0, "i", "f", "1")]
    assert reader.feed([2]).tool_calls == [ToolCallDelta(0, arguments="2")]


@given(text=st.text("ab()[:]EN日", max_size=24), tokens_per_step=st.integers(1, 5))
def test_a_stream_joins_to_the_whole_answer(text, tokens_per_step):
    engine = FakeEngine(lambda prompt, index: ids, tokens_per_step=tokens_per_step)
    ids = engine.tokenizer.encode(text)
    recipe = FakeRecipe("X", engine.tokenizer.to_json())
    encoder = ChatEncoder(engine.tokenizer, template=None, recipe=recipe)
    frontend = Frontend(engine, engine.tokenizer)
    params = SamplingParams(max_tokens=40, stop="EN")
    try:
        (whole,) = run_jobs(frontend, make_jobs([encoder.encode(MESSAGES)], params))
        reply = Reply()
        with TokenStream(frontend, encoder.encode(MESSAGES), params) as stream:
            for delta in stream:
                reply.add(delta)
        assert stream.output.outputs == whole.outputs
        assert reply.message == whole.outputs[0].message
        assert "EN" not in whole.outputs[0].text
    finally:
        frontend.loop.close()
