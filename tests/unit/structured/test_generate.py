"""Answers in a given form, from a request to its text, on a tiny random model."""

import asyncio
import json
import sys
from types import ModuleType

import pytest
from deepinfer_core import LLM, hookimpl
from deepinfer_core.errors import ConfigError, GrammarError
from deepinfer_core.plugin_api import GrammarBackendSpec, PluginInfo
from deepinfer_core.plugins import PluginHost
from deepinfer_core.structured.xgrammar_backend import XgrammarBackend
from deepinfer_core.testing.tiny import write_tiny_checkpoint

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")
    with LLM(model, dtype="float32", num_blocks=400, plugins=()) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_json_that_fits_its_schema(llm, temperature):
    params = {
        "structured": {"json_schema": SCHEMA},
        "max_tokens": 300,
        "temperature": temperature,
        "seed": 3,
    }
    (output,) = llm.generate("A person: ", params)
    answer = json.loads(output.text)
    assert list(answer) == ["name", "age", "tags"]
    assert 0 <= answer["age"] <= 150
    assert len(answer["name"]) <= 12
    assert set(answer["tags"]) <= {"a", "b"}
    assert output.outputs[0].finish_reason == "stop"


def test_unconstrained_neighbours_get_what_they_get_alone(llm):
    free = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
    alone = llm.generate("hello", free)[0].outputs[0].token_ids
    held = {"structured": {"json_schema": SCHEMA}, "max_tokens": 60, "seed": 3}
    outputs = llm.generate(["A person: ", "hello", "A person: "], [held, free, held])
    assert outputs[1].outputs[0].token_ids == alone


def test_a_refused_form_fails_its_own_request_and_names_the_place(llm):
    bad = {"structured": {"json_schema": {"properties": {"a": {"not": {}}}}}, "max_tokens": 4}
    outputs = llm.generate(["x", "x"], [bad, {"max_tokens": 4}])
    assert "#/properties/a/not" in str(outputs[0].error)
    assert outputs[1].error is None
    assert len(outputs[1].outputs[0].token_ids) == 4


def test_metrics_count_masks_and_grammars(llm):
    before = llm.metrics()
    params = {"structured": {"choice": ["yes", "no", "never"]}, "max_tokens": 10}
    (output,) = llm.generate("x", params)
    assert output.text in ("yes", "no", "never")
    llm.generate("x", params)
    after = llm.metrics()
    assert after.num_mask_rows > before.num_mask_rows
    assert after.num_grammars_compiled == before.num_grammars_compiled + 1
    assert after.num_grammar_hits == before.num_grammar_hits + 1
    assert after.mask_fill_s > before.mask_fill_s
    assert after.grammar_compile_s > before.grammar_compile_s


def test_streams_wait_for_a_form_and_raise_what_is_wrong_with_it(llm):
    params = {"structured": {"regex": "[ab]{3}c"}, "max_tokens": 10, "seed": 1}
    text = "".join(delta.text for delta in llm.stream("x", params))
    assert text == llm.generate("x", params)[0].text
    with pytest.raises(GrammarError, match=r"structured\.regex: "):
        list(llm.stream("x", {"structured": {"regex": "a(?=b)"}}))

    async def ask():
        return "".join([delta.text async for delta in llm.agenerate("x", params)])

    assert asyncio.run(ask()) == text


def test_calls_that_want_errors_raised_get_them(llm):
    with pytest.raises(GrammarError, match="#/type"):
        llm.generate("x", {"structured": {"json_schema": {"type": "odd"}}}, on_error="raise")


START, END = "ll", "<|im_start|>"  # which end no answer
THINKING = {"thinking_start": START, "thinking_end": END}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """Two tokens stand around what it thinks."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")
    with LLM(model, dtype="float32", num_blocks=400, plugins=(), **THINKING) as llm:
        yield llm


def parts(llm, output):
    """How many tokens were thought, and the answer."""
    ids = output.outputs[0].token_ids
    num_thought = ids.index(1)
    return num_thought, llm.tokenizer.decode(ids[num_thought + 1 :])


@pytest.mark.parametrize("ending", ["", "\n", " \n\t"])
def test_a_prompt_that_has_begun_to_think_goes_on_so(thinker, ending):
    params = {"structured": {"choice": ["yes", "no"]}, "thinking_budget": 4, "max_tokens": 20}
    (output,) = thinker.generate(f"so: {START}{ending}", {**params, "seed": 3})
    num_thought, answer = parts(thinker, output)
    assert num_thought <= 4
    assert answer in ("yes", "no")


@pytest.mark.parametrize("ending", [END, f"{END}\n\n", f"{START}x", "so"])
def test_a_prompt_that_has_thought_or_does_not_think_is_answered(thinker, ending):
    """What somebody wrote before the end of the prompt opens nothing."""
    params = {"structured": {"choice": ["yes", "no"]}, "max_tokens": 20, "seed": 3}
    (output,) = thinker.generate(f"so: {START}a{ending}", params)
    assert output.text in ("yes", "no")


def test_a_chat_may_begin_with_thinking(thinker):
    messages = [{"role": "user", "content": "x"}]
    params = {"structured": {"choice": ["yes", "no"]}, "thinking_budget": 3, "max_tokens": 20}
    start = thinker.tokenizer.token_to_id(START)
    thinks = {**params, "logit_bias": {start: 100.0}, "seed": 1}
    (output,) = thinker.chat(messages, thinks)
    assert output.outputs[0].token_ids[0] == start
    assert output.outputs[0].token_ids[4] == 1
    assert parts(thinker, output)[1] in ("yes", "no")
    (output,) = thinker.chat(messages, {**params, "logit_bias": {start: -100.0}, "seed": 1})
    assert output.text in ("yes", "no")


def test_a_vocabulary_without_thinking_cannot_bound_it(llm):
    (output,) = llm.generate("x", {"thinking_budget": 3})
    assert "no token that ends thinking" in str(output.error)


def test_an_unknown_backend_is_refused_with_those_that_there_are(tmp_path):
    model = write_tiny_checkpoint(tmp_path, "llama")
    with pytest.raises(ConfigError, match="auto, llguidance, xgrammar"):
        LLM(model, plugins=(), num_blocks=20, grammar_backend="outlines")


class Plugin:
    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("forms", "1", "test", api=">=1.0,<2")

    @hookimpl
    def deepinfer_grammar_backends(self):
        return [GrammarBackendSpec(name, f"{name}_forms:Backend") for name in ("mine", "missing")]


@pytest.mark.parametrize("name", ["mine", "missing"])
def test_a_plugin_brings_its_own_backend(tmp_path, monkeypatch, name):
    made = []

    def backend(vocabulary):
        made.append(len(vocabulary.token_bytes))
        return XgrammarBackend(vocabulary)

    module = ModuleType("mine_forms")
    module.Backend = backend
    monkeypatch.setitem(sys.modules, "mine_forms", module)
    host = PluginHost(load_entry_points=False)
    host.register(Plugin(), name="forms")
    model = write_tiny_checkpoint(tmp_path, "llama")
    with LLM(model, host=host, num_blocks=20, dtype="float32", grammar_backend=name) as llm:
        (output,) = llm.generate("x", {"structured": {"choice": ["ab"]}, "max_tokens": 4})
        if name == "mine":
            assert output.text == "ab"
            assert made == [llm.engine.info.vocab_size]
        else:
            assert "no grammar backend is installed (missing: " in str(output.error)
            assert "pip install 'deepinfer-core[structured]'" in str(output.error)
