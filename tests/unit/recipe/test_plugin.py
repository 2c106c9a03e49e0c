"""What core makes of DeepSeek's answers: the recipe and core's faces together, on forced tokens."""

import asyncio
import json
import sys
from types import ModuleType

import pytest
import tokenizers
from deepinfer_core import LLM, hookimpl
from deepinfer_core.errors import RequestError
from deepinfer_core.faces.chat import ChatEncoder
from deepinfer_core.faces.collect import make_jobs, run_jobs
from deepinfer_core.faces.encoder import Encoder
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.reply import ReplyReader
from deepinfer_core.faces.streams import TokenStream
from deepinfer_core.outputs import Reply
from deepinfer_core.plugin_api import PluginInfo, RecipeSpec, StageSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.fake_engine import FakeEngine
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_recipe.plugin import EngineRecipe
from hypothesis import given
from hypothesis import strategies as st

EOS = "<｜end▁of▁sentence｜>"
USER = [{"role": "user", "content": "weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "clock")
]
BEGIN, END = "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>"
WEATHER = (
    '<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="city" string="true">'
    "Zürich 日本</｜DSML｜ parameter>\n"
    '<｜DSML｜ parameter name="days" string="false">[1, 2]</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n"
)
CLOCK = '<｜DSML｜ invoke name="clock">\n\n</｜DSML｜ invoke>\n'
ANSWER = f"I should look 🌦️</think>Let me look.{BEGIN}{WEATHER}{CLOCK}{END}"
ARGUMENTS = '{"city": "Zürich 日本", "days": [1, 2]}'
LONG = SamplingParams(max_tokens=400)


@pytest.fixture(scope="module")
def core_tokenizer(tokenizer_json):
    backend = tokenizers.Tokenizer.from_str(tokenizer_json)
    return Tokenizer(backend, special_tokens={"eos_token": EOS})


@pytest.fixture(scope="module")
def recipe(tokenizer_json):
    return EngineRecipe("DeepseekV41ForCausalLM", tokenizer_json)


@pytest.fixture(params=[1, 3])
def engine(request, core_tokenizer):
    return FakeEngine(tokenizer=core_tokenizer, tokens_per_step=request.param)


@pytest.fixture
def frontend(engine):
    frontend = Frontend(engine, engine.tokenizer)
    yield frontend
    frontend.loop.close()


@pytest.fixture
def encoder(core_tokenizer, recipe):
    return Encoder(core_tokenizer, ChatEncoder(core_tokenizer, template=None, recipe=recipe))


@pytest.fixture
def chat(engine, frontend, encoder, tokenizer):
    """Have a text answered, whole and as a stream, see that both agree, return the sample."""

    def chat(text, params=LONG, messages=USER, **options):
        ids = tokenizer.encode(text)
        engine._reply = lambda prompt, index: ids
        options = {"tools": TOOLS, **options}
        (whole,) = run_jobs(
            frontend, make_jobs(encoder.chats(messages, **options), params), raise_errors=True
        )
        with TokenStream(frontend, encoder.chat(messages, **options), params) as stream:
            reply = Reply()
            for delta in stream:
                reply.add(delta)
        assert stream.output.outputs == whole.outputs
        assert reply.message == whole.outputs[0].message
        return whole

    return chat


def test_an_answer_with_thinking_and_calls(chat):
    (sample,) = chat(ANSWER).outputs
    assert sample.reasoning_content == "I should look 🌦️"
    assert sample.content == "Let me look."
    assert [(c.name, c.arguments) for c in sample.tool_calls] == [
        ("weather", ARGUMENTS),
        ("clock", "{}"),
    ]
    assert sample.finish_reason == "stop"
    assert sample.stop_reason is None
    assert "DSML" not in json.dumps(sample.message, ensure_ascii=False)
    assert sample.text == ANSWER


def test_a_turn_begins_with_the_ids_of_the_turn_before(chat, core_tokenizer):
    """An answer that is given back is rendered as the model wrote it, so its prefix is cached."""
    first = chat(ANSWER)
    (sample,) = first.outputs
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in sample.tool_calls
    ]
    second = chat("warm</think>It is sunny.", messages=[*USER, sample.message, *results])
    prefix = first.prompt_token_ids + sample.token_ids
    begun = core_tokenizer.decode(second.prompt_token_ids[: len(prefix)], skip_special_tokens=False)
    assert begun == core_tokenizer.decode(prefix, skip_special_tokens=False)
    assert second.prompt_token_ids[: len(prefix)] == prefix
    assert second.outputs[0].message == {
        "role": "assistant",
        "content": "It is sunny.",
        "reasoning_content": "warm",
    }


@pytest.mark.parametrize("num_tokens", [1, 5, 6, 7, 8, 9, 10, 20, 31, 40, 44, 45, 60])
def test_a_cut_answer_is_the_same_whole_and_streamed(chat, tokenizer, num_tokens):
    (sample,) = chat(ANSWER, SamplingParams(max_tokens=num_tokens)).outputs
    assert sample.finish_reason == "length"
    shown = json.dumps(sample.message, ensure_ascii=False)
    assert "DSML" not in shown
    assert "think>" not in shown
    if num_tokens > 8:
        assert sample.reasoning_content.startswith("I should look")


def test_text_before_half_a_character_is_kept(recipe, tokenizer):
    """Fed at once, an output that ended in half a character lost all text of its last piece."""
    ids = tokenizer.encode("why 🌦")
    for chunks in ([ids[:-1]], [[i] for i in ids[:-1]]):
        reader = ReplyReader(recipe.parser(recipe.encode({"messages": USER})))
        reply = Reply()
        for chunk in chunks:
            reply.add(reader.feed(chunk))
        reply.add(reader.finish([], is_stopped=False))
        assert reply.reasoning_content.rstrip("\ufffd") == "why "
        assert reply.reasoning_content.endswith("\ufffd")


def test_stop_strings_end_thinking_and_answer_alike(chat):
    (sample,) = chat(ANSWER, SamplingParams(max_tokens=400, stop="me look")).outputs
    assert (sample.content, sample.stop_reason) == ("Let ", "me look")
    assert sample.tool_calls == []
    (sample,) = chat(ANSWER, SamplingParams(max_tokens=400, stop="</think>")).outputs
    assert (sample.reasoning_content, sample.content) == ("I should look 🌦️", "")
    (sample,) = chat(ANSWER, SamplingParams(max_tokens=400, stop="look")).outputs
    assert (sample.reasoning_content, sample.content) == ("I should ", "")


def test_ids_of_calls_follow_from_the_chat_and_the_answer(chat):
    def ids(text, messages=USER):
        return [call.id for call in chat(text, messages=messages).outputs[0].tool_calls]

    first = ids(ANSWER)
    assert first == ids(ANSWER)
    assert len({*first, *ids(ANSWER, [{"role": "user", "content": "?"}]), *ids("x" + ANSWER)}) == 6
    assert first[0].startswith("call_00_")
    assert first[1].startswith("call_01_")
    assert "ET_" not in first[0]
    unreasoned = ids(ANSWER[ANSWER.index("</think>") :])
    assert unreasoned[0].startswith("call_00_ET_")


def test_thinking_may_be_off_and_may_count_as_the_answer(chat):
    options = {"tools": None, "chat_template_kwargs": {"thinking": {"type": "disabled"}}}
    (sample,) = chat("just so", **options).outputs
    assert (sample.content, sample.reasoning_content) == ("just so", "")
    assert sample.message == {"role": "assistant", "content": "just so"}
    (sample,) = chat("never ends", tools=None).outputs
    assert (sample.content, sample.reasoning_content) == ("", "never ends")
    options = {"chat_template_kwargs": {"promotes_reasoning": True}}
    (sample,) = chat("never ends", **options).outputs
    assert (sample.content, sample.reasoning_content) == ("never ends", "never ends")


def test_what_belongs_elsewhere_is_refused(encoder):
    refused = {
        "sampling parameters": {"stop": ["x"], "max_tokens": 3},
        "refused: argument 'promotes_reasoning'": {"promotes_reasoning": 1},
    }
    messages = [{"role": "user", "content": "json"}]
    for message, fields in refused.items():
        with pytest.raises(RequestError, match=message):
            encoder.chat(messages, chat_template_kwargs=fields)


CALLS = [f"{BEGIN}{calls}{END}" for calls in ("", CLOCK, WEATHER + CLOCK)]
PIECES = st.sampled_from(
    ["why ", "日本", "🌦️", "\n", "\n\n", "</think>", "so", "END", "<", EOS, *CALLS]
)


@given(pieces=st.lists(PIECES, max_size=9), data=st.data())
def test_any_chunking_gives_the_same_answer(recipe, tokenizer, pieces, data):
    ids = tokenizer.encode("".join(pieces))
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    encoded = recipe.encode({"messages": USER, "tools": TOOLS})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    whole, joined = Reply(), Reply()
    whole.add(ReplyReader(recipe.parser(encoded), stop=["END"]).finish(ids, is_stopped=False))
    reader = ReplyReader(recipe.parser(encoded), stop=["END"])
    for start, end in zip([0, *cuts], cuts, strict=False):
        joined.add(reader.feed(ids[start:end]))
    joined.add(reader.finish(ids[cuts[-1] if cuts else 0 :], is_stopped=False))
    assert joined.message == whole.message
    assert "｜DSML｜" not in json.dumps(whole.message, ensure_ascii=False)


SCRIPT: list[int] = []


def follow_script(logits, context):
    """Force the next token of `SCRIPT`, whatever the model says."""
    for index, position in enumerate(context.positions.tolist()):
        logits[index] -= 1e4
        logits[index, SCRIPT[position - len(context.prompt_token_ids[index])]] = 1e4
    return logits


class Scripted:
    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("scripted", "1", "test", api=">=1.0,<2")

    @hookimpl
    def deepinfer_recipes(self):
        return [RecipeSpec("deepseek", "scripted_parts:make_recipe", ("LlamaForCausalLM",))]

    @hookimpl
    def deepinfer_logits_stages(self):
        return [StageSpec(name="script", target="scripted_parts:follow_script")]


def make_recipe(architecture, tokenizer_json):
    return EngineRecipe("DeepseekV41ForCausalLM", tokenizer_json)


@pytest.fixture(scope="module")
def llm(tokenizer_json, tmp_path_factory):
    """A tiny model of another family with DeepSeek's tokenizer, whose answers are forced."""
    path = write_tiny_checkpoint(
        tmp_path_factory.mktemp("tiny"),
        "llama",
        generation_config={"eos_token_id": 1},
        vocab_size=129280,
        hidden_size=16,
        num_hidden_layers=1,
        max_position_embeddings=1024,
    )
    (path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    host = PluginHost(load_entry_points=False)
    host.register(Scripted(), name="scripted")
    module = ModuleType("scripted_parts")
    module.make_recipe, module.follow_script = make_recipe, follow_script
    sys.modules["scripted_parts"] = module
    with LLM(path, host=host, dtype="float32", max_num_seqs=4, num_blocks=400) as llm:
        yield llm
        llm.engine.check_integrity()
    del sys.modules["scripted_parts"]


def test_a_real_engine_gives_the_answer_through_every_face(llm, tokenizer):
    SCRIPT[:] = [*tokenizer.encode(ANSWER), 1, *[5] * 20]
    params = {"max_tokens": 300, "n": 2, "logits_stages": ("script",), "seed": 3}
    (whole,) = llm.chat(USER, params, tools=TOOLS, on_error="raise")
    for sample in whole.outputs:
        assert (sample.reasoning_content, sample.content) == ("I should look 🌦️", "Let me look.")
        assert [c.arguments for c in sample.tool_calls] == [ARGUMENTS, "{}"]
        assert (sample.finish_reason, sample.stop_reason) == ("stop", None)
    replies = [Reply(), Reply()]
    for delta in llm.stream(USER, params, tools=TOOLS):
        replies[delta.index].add(delta)
    assert [r.message for r in replies] == [s.message for s in whole.outputs]

    async def ask():
        reply = Reply()
        async for delta in llm.agenerate(USER, {**params, "n": 1}, tools=TOOLS):
            reply.add(delta)
        return reply.message

    assert asyncio.run(ask()) == whole.outputs[0].message
    # Who names the token that ends an answer is told of it.
    (named,) = llm.chat(USER, {**params, "n": 1, "stop_token_ids": [1]}, tools=TOOLS)
    assert named.outputs[0].stop_reason == 1
    cut = {**params, "n": 1, "stop": "me look"}
    (output,) = llm.chat(USER, cut, tools=TOOLS, on_error="raise")
    assert output.outputs[0].content == "Let "


def test_conversations_of_a_real_engine_go_on(llm, tokenizer):
    messages = list(USER)
    params = {"max_tokens": 300, "logits_stages": ("script",)}
    for text in (ANSWER, "sun</think>It is sunny."):
        SCRIPT[:] = [*tokenizer.encode(text), 1, *[5] * 20]
        (sample,) = llm.chat(messages, params, tools=TOOLS, on_error="raise")[0].outputs
        messages.append(sample.message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            for call in sample.tool_calls
        ]
    assert messages[-1]["content"] == "It is sunny."
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("messages", [[], None])
def test_continuing_needs_a_message(recipe, messages):
    with pytest.raises(ValueError, match="continue_final_message continues the last message"):
        recipe.encode({"messages": messages, "continue_final_message": True})
